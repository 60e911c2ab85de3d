// The panel of the selected rank: what it holds, from whom it receives and to whom it sends.

const MOST_ROWS = 10;

function peerTable(title, peers, rank, isSending) {
  if (!peers.total) return null;
  const entries = peers.sorted;
  const rows = entries.map(({ peer, hop, nbytes }) => [
    rankButton(peer, isSending || hop ? "dst" : "src"),
    linkBetween(rank, peer),
    hop ? `hop ${hop}` : "first",
    make("span", { class: "amount", "data-bytes": nbytes },
      shareBar(nbytes / entries[0].nbytes), formatBytes(nbytes)),
  ]);
  const columns = [{ title: "Rank", isNumber: true }, { title: "Over" }, { title: "Hop" },
    { title: "Bytes", isNumber: true }];
  const count = countText(new Set(entries.map(({ peer }) => peer)).size, "rank");
  return shortTable(`${title} ${count}`, columns, rows, MOST_ROWS);
}

function boxesText(boxes, shape) {
  if (!shape.length) return "one element";
  if (boxes.length === 1 && numElementsIn(boxes) === product(shape)) {
    return `all of [${shape.join(", ")}]`;
  }
  const more = boxes.length > 3 ? ` and ${boxes.length - 3} more` : "";
  return `${boxes.slice(0, 3).map(boxText).join(" ")}${more} of [${shape.join(", ")}]`;
}

function holdingTable(rank, side) {
  const rows = holdingsOf(rank, side).map(({ group, boxes, count, nbytes, shape }) => [
    make("div", {},
      make("button", { type: "button", class: "link name",
        onclick: () => select({ tensor: firstOn(group, rank, side) }) }, breakable(group.name)),
      make("small", {}, boxesText(boxes, shape))),
    count,
    formatBytes(nbytes),
  ]);
  if (!rows.length) return null;
  const columns = [{ title: "Tensors and the box of each" }, { title: "Count", isNumber: true },
    { title: "Bytes", isNumber: true }];
  const name = side === "src" ? "Holds as a source" : "Stores as a destination";
  return shortTable(name, columns, rows, MOST_ROWS);
}

function firstOn(group, rank, side) {
  for (const [other, index] of families.get(group.name)) {
    if (positionsOf[other.kind[side]].has(rank)) {
      return { group: other, index, name: nameOf(other, index) };
    }
  }
  return null;
}

function fact(name, nbytes, more, key) {
  return make("div", {}, make("dt", {}, name),
    make("dd", { "data-bytes": nbytes, "data-fact": key }, formatBytes(nbytes),
      more && make("small", {}, more)));
}

/** Returns how the bytes are shared out over network and domain. */
function splitText(peers, rank) {
  const sums = { network: 0, domain: 0, link: 0 };
  for (const { peer, nbytes } of peers.entries.values()) sums[linkBetween(rank, peer)] += nbytes;
  if (!data.topology || !peers.total) return null;
  return `${formatBytes(sums.network)} network, ${formatBytes(sums.domain)} domain`;
}

function drawRank({ rank, tensor }) {
  const panel = byId("rank-panel");
  if (rank === null) {
    panel.replaceChildren(make("p", { class: "muted" },
      "Select a rank to see which boxes it holds, who sends it what and over which link. ",
      "Tab reaches the ranks, arrow keys move, Enter selects, Escape clears."));
    return;
  }
  const { sent, received, copied } = trafficOf(rank, tensor);
  const roles = ["src", "dst"].filter((side) => isOn[side].has(rank))
    .map((side) => (side === "src" ? "source" : "destination")).join(" and ");
  const place = data.topology ? `, host ${hostOf(rank)}, domain ${domainOf(rank)}` : "";
  const parts = [
    make("h3", {}, `Rank ${rank}`), make("p", { class: "muted" }, `${roles}${place}`),
    tensor && make("p", { class: "only" }, "Bytes of ", make("b", {}, tensor.name), " alone"),
    make("dl", { class: "facts" },
      fact("Sends", sent.total, splitText(sent, rank), "sent"),
      fact("Receives", received.total, splitText(received, rank), "received"),
      fact("Copies in place", copied.total, null, "copied")),
    peerTable("Receives from", received, rank, false),
    peerTable("Sends to", sent, rank, true),
    holdingTable(rank, "src"), holdingTable(rank, "dst"),
  ];
  panel.replaceChildren(...parts.filter((part) => part));
}
