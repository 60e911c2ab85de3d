// Rounds as a timeline: hop h of round k in slot k + h, packing before and unpacking after.

const LANE_HEIGHT = 34;
const LANE_NAMES = 104;
const NARROW_NAMES = 92;

/** Lanes from top to bottom; round k is in slot k + shift. */
function lanes() {
  const found = [{ name: "pack", shift: -1 }];
  for (let hop = 0; hop < data.figures.numHops; hop++) {
    const name = hop ? `exchange ${data.figures.numHops > 2 ? hop : ""}`.trim() : "from sources";
    found.push({ name, shift: hop });
  }
  return [...found, { name: "unpack", shift: data.figures.numHops }];
}

/** Returns the slots that fit, with a null where others are left out. */
function shownSlots(count) {
  const { numRounds, numHops } = data.figures;
  const all = numRounds + numHops + 1;
  const slots = (from, number) => Array.from({ length: number }, (_, at) => from + at - 1);
  if (all <= count) return slots(0, all);
  const first = Math.ceil((count - 1) / 2);
  const last = count - 1 - first;
  return [...slots(0, first), null, ...slots(all - last, last)];
}

function timeline(width) {
  const { numRounds, numSlots, numHops, seconds } = data.figures;
  const names = width < 520 ? NARROW_NAMES : LANE_NAMES;
  const count = Math.max(5, Math.floor((width - names - 8) / (width < 520 ? 30 : 54)));
  const slots = shownSlots(count);
  const across = Math.min(110, (width - names - 8) / slots.length);
  const height = 40 + lanes().length * LANE_HEIGHT + 40;
  const chart = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    class: "chart", "aria-label": `Timeline of ${numRounds} rounds in ${numSlots} slots` });
  const x = (at) => names + at * across;
  slots.forEach((slot, at) => {
    if (slot === null) {
      chart.append(draw("text", { x: x(at) + across / 2, y: height / 2 - 8, class: "gap" },
        "\u22ef"));
      return;
    }
    lanes().forEach(({ name, shift }, lane) => {
      const round = slot - shift;
      if (round < 0 || round >= numRounds) return;
      const y = 40 + lane * LANE_HEIGHT;
      const block = draw("g", { class: `round r${round % 4}` },
        draw("rect", { x: x(at) + 1, y: y + 2, width: across - 2, height: LANE_HEIGHT - 4, rx: 3 }),
        draw("title", {}, `${name}, round ${round}`));
      const text = `${round}`;
      if (across >= 7 * text.length + 6) {
        block.append(draw("text", { x: x(at) + across / 2, y: y + LANE_HEIGHT / 2 }, text));
      }
      chart.append(block);
    });
  });
  lanes().forEach(({ name }, lane) => chart.append(draw("text", { x: names - 8,
    y: 40 + (lane + 0.5) * LANE_HEIGHT, class: "tick end" }, name)));
  drawPhases(chart, slots, x, numRounds, numHops);
  drawTimes(chart, slots, x, height - 26, seconds, numSlots, across);
  return chart;
}

/** Brackets above the slots in which the pipeline fills, is full, and drains. */
function drawPhases(chart, slots, x, numRounds, numHops) {
  const phaseOf = (slot) => (slot < numHops ? (slot < numRounds - 1 ? "fill" : "drain")
    : slot < numRounds - 1 ? "steady" : "drain");
  const phases = slots.map((slot) => (slot === null ? "steady" : phaseOf(slot)));
  let from = 0;
  phases.forEach((phase, at) => {
    if (phases[at + 1] === phase) return;
    const [left, right] = [x(from) + 2, x(at + 1) - 2];
    chart.append(draw("path", { d: `M${left},32 v-6 H${right} v6`, class: "bracket" }));
    if (right - left >= 38) {
      chart.append(draw("text", { x: (left + right) / 2, y: 18, class: "tick middle" }, phase));
    }
    from = at + 1;
  });
}

function drawTimes(chart, slots, x, y, seconds, numSlots, across) {
  if (!seconds) return;
  const every = Math.max(1, Math.ceil(64 / across));
  slots.forEach((slot, at) => {
    if (slot === null || slot < 0 || slot > numSlots) return;
    const isEnd = slot === numSlots;
    const isEarly = slot < slots.length / 2 && slot % every === 0 && slot <= numSlots - every;
    if (!isEnd && !isEarly) return;
    const time = (seconds * slot) / numSlots;
    chart.append(draw("line", { x1: x(at), x2: x(at), y1: y - 12, y2: y - 4, class: "tick-line" }));
    chart.append(draw("text", { x: x(at), y: y + 6, class: "tick middle" }, formatSeconds(time)));
  });
}

function roundTable() {
  const { numRounds, numHops, numSlots, seconds } = data.figures;
  const rows = [["rounds", numRounds.toLocaleString("en")], ["hops", `${numHops}`],
    ["slots", numSlots.toLocaleString("en")]];
  if (seconds !== null) {
    rows.push(["seconds per slot", formatSeconds(numSlots ? seconds / numSlots : 0)],
      ["seconds", formatSeconds(seconds)]);
  }
  for (const { name, shift } of lanes()) {
    rows.push([name, `round k in slot k ${shift < 0 ? "\u2212 1" : shift ? `+ ${shift}` : ""}`]);
  }
  return makeTable("Rounds", [{ title: "What" }, { title: "Value" }], rows);
}

function drawRounds() {
  const { numRounds, numSlots, seconds } = data.figures;
  if (!numRounds) {
    byId("rounds-hint").textContent = "Nothing moves between ranks, so there are no rounds.";
    return;
  }
  const each = seconds === null ? ""
    : `, ${formatSeconds(seconds / numSlots)} each at the rate of the busiest link`;
  byId("rounds-hint").textContent = `${numRounds.toLocaleString("en")} `
    + `${numRounds === 1 ? "round" : "rounds"} in ${numSlots.toLocaleString("en")} slots${each}. `
    + "In a slot one round comes from the sources while earlier ones are passed on; "
    + "packing runs one slot ahead and unpacking one behind. Numbers are rounds.";
  byId("rounds").replaceChildren(figure("Rounds over time", [], timeline,
    tableOnDemand("Rounds as a table", roundTable)));
}
