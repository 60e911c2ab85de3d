// Arrows between the selected rank and those it exchanges most with.

const MOST_ARROWS = 24;

function centreOf(side, rank, frame) {
  const cell = cells[side].get(rank);
  if (!cell) return null;
  const box = cell.getBoundingClientRect();
  return [box.left - frame.left + box.width / 2, box.top - frame.top + box.height / 2];
}

function arrow(from, to, share, isBack) {
  const [x1, y1] = from;
  const [x2, y2] = to;
  const bend = Math.hypot(x2 - x1, y2 - y1) * 0.12;
  const middle = [(x1 + x2) / 2, (y1 + y2) / 2 - bend];
  return draw("path", {
    d: `M${x1},${y1} Q${middle[0]},${middle[1]} ${x2},${y2}`,
    class: isBack ? "arrow back" : "arrow",
    "stroke-width": (1 + 2.5 * share).toFixed(2),
    "marker-end": "url(#arrow-head)",
  });
}

function drawArrows() {
  const layer = byId("arrows");
  layer.replaceChildren();
  const { rank, side, tensor } = state;
  if (rank === null) return;
  const frame = byId("meshes").getBoundingClientRect();
  layer.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  layer.append(draw("defs", {}, draw("marker", { id: "arrow-head", viewBox: "0 0 8 8", refX: 7,
    refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse",
    orient: "auto-start-reverse" }, draw("path", { d: "M0,0 L8,4 L0,8 z", class: "arrow-tip" }))));
  const { sent, received } = trafficOf(rank, tensor);
  const both = [
    ...received.sorted.map((entry) => ({ ...entry, isBack: true })),
    ...sent.sorted.map((entry) => ({ ...entry, isBack: false })),
  ].sort((a, b) => b.nbytes - a.nbytes).slice(0, MOST_ARROWS);
  const here = centreOf(side, rank, frame);
  for (const { peer, hop, nbytes, isBack } of both) {
    const there = centreOf(hop || !isBack ? "dst" : "src", peer, frame);
    if (!here || !there) continue;
    const share = nbytes / both[0].nbytes;
    layer.append(isBack ? arrow(there, here, share, true) : arrow(here, there, share, false));
  }
}
