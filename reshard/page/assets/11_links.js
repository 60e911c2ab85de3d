// Which links are busy for how long, and what binds.

const SERIES = [{ name: "out", className: "bar-out" }, { name: "in", className: "bar-in" }];
const MOST_BARS = 64;

function domainLoads() {
  const { networkSent, networkReceived } = data.figures;
  const sums = new Map(data.topology.domainRates.map(([domain, rate]) =>
    [domain, { rate, sent: 0, received: 0 }]));
  ranks.forEach((rank, at) => {
    const sum = sums.get(domainOf(rank));
    sum.sent += networkSent[at];
    sum.received += networkReceived[at];
  });
  return [...sums].map(([domain, { rate, sent, received }]) => ({
    name: `domain ${domain}`, sent, received, rate, values: [sent / rate, received / rate] }));
}

function domainFigure() {
  const rows = domainLoads();
  const { seconds, cuts } = data.figures.floor;
  const name = cuts.length && `floor ${formatSeconds(seconds)}, ${cuts[0].name}`;
  const floor = cuts.length ? { seconds, name } : null;
  const columns = [{ title: "Domain" }, { title: "Bytes out", isNumber: true },
    { title: "Bytes in", isNumber: true }, { title: "Busy out", isNumber: true },
    { title: "Busy in", isNumber: true }];
  const table = tableOnDemand("Network cards as a table", () => makeTable(
    "Network cards of each domain", columns, rows.map(({ name, sent, received, values }) =>
      [name, formatBytes(sent), formatBytes(received), ...values.map(formatSeconds)])));
  return figure("Network cards of each domain: how long they are busy at full rate", SERIES,
    (width) => barChart(width, { rows, series: SERIES, format: formatSeconds, axis: "domain", floor,
      label: "Seconds per domain, out and in, with the floor as a line" }), table);
}

/** Returns the least, the mean and the most of some bytes in words. */
function spreadText(values) {
  const mean = sumOf(values) / (values.length || 1);
  return `least ${formatBytes(Math.min(...values))}, mean ${formatBytes(mean)}, `
    + `most ${formatBytes(Math.max(...values))}`;
}

/** Returns the floor as bytes of one rank, where all bytes go over links of ranks. */
function floorOfRanks() {
  if (!data.topology || sumOf(data.figures.networkSent)) return null;
  const { seconds, cuts } = data.figures.floor;
  return cuts.length ? { seconds: seconds * data.topology.linkRate,
    name: `floor ${formatSeconds(seconds)}, ${cuts[0].name}` } : null;
}

function rankFigure(side, title, values, className) {
  const list = sides[side];
  const table = tableOnDemand(`${title} as a table`, () => makeTable(title,
    [{ title: "Rank", isNumber: true }, { title: "Bytes", isNumber: true }],
    list.map((rank, at) => [rankButton(rank, side), formatBytes(values[at])])));
  const axis = list.length <= MOST_BARS ? "rank" : "bytes";
  const rows = list.map((rank, at) => ({ name: `rank ${rank}`, values: [values[at]] }));
  const render = (width) => list.length <= MOST_BARS
    ? barChart(width, { rows, series: [{ name: "", className }], format: formatBytes, axis,
      label: title, floor: floorOfRanks() })
    : histogram(width, { values, axis, className, label: `${title}: number of ranks by bytes` });
  const suffix = list.length <= MOST_BARS ? "" : ": number of ranks by bytes";
  return figure(title + suffix, [{ name: spreadText(values) }], render, table);
}

function cutTable() {
  const columns = [{ title: "Cut" }, { title: "Bytes", isNumber: true },
    { title: "Rate", isNumber: true }, { title: "At least", isNumber: true }];
  const caption = "What has to pass where at least, the slowest first";
  const rows = data.figures.floor.cuts.map(({ name, nbytes, rate, seconds }) =>
    [name, formatBytes(nbytes), `${formatBytes(rate)}/s`, formatSeconds(seconds)]);
  return make("div", { class: "scroll" }, makeTable(caption, columns, rows));
}

function drawLinks() {
  const { figures } = data;
  const add = (side, ...lists) => sides[side].map((rank) =>
    sumOf(lists.map((list) => list[indexOfRank.get(rank)])));
  const parts = [];
  if (data.topology) {
    const binding = figures.floor.cuts[0];
    byId("links-hint").textContent = binding
      ? `No plan can be faster than the floor: ${formatBytes(binding.nbytes)} have to pass `
        + `\u201c${binding.name}\u201d, which lets ${formatBytes(binding.rate)} pass per second. `
        + "A bar that reaches the line is as short as any plan can make the longest one."
      : "Nothing has to move between ranks, so there is no floor.";
    if (sumOf(figures.networkSent)) parts.push(domainFigure());
  } else {
    byId("links-hint").textContent =
      "This plan was made without a topology: domains, times and the floor are not known.";
  }
  parts.push(make("div", { class: "two" },
    rankFigure("src", "Sent by each source rank",
      add("src", figures.networkSent, figures.linkSent), "bar-out"),
    rankFigure("dst", "Received by each destination rank",
      add("dst", figures.networkReceived, figures.linkReceived), "bar-in")));
  if (data.topology && figures.floor.cuts.length) parts.push(cutTable());
  byId("links").replaceChildren(...parts);
}
