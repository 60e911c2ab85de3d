// Arrows between the selected rank and those it exchanges most with.

const MOST_ARROWS = 24;
const MOST_ARROWS_ON_TOP = 8; // where one side is above the other

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
    "stroke-width": (0.8 + 1.8 * share).toFixed(2),
    "marker-end": "url(#arrow-head)",
  });
}

/** Returns what flows to or from a rank: per peer, or per domain where peers are many. */
function flowsAround(rank, tensor, most) {
  const { sent, received } = trafficOf(rank, tensor);
  const isMany = sent.entries.size + received.entries.size > most;
  const sums = new Map();
  for (const [peers, isBack] of [[received, true], [sent, false]]) {
    for (const { peer, hop, nbytes } of peers.entries.values()) {
      const side = hop || !isBack ? "dst" : "src";
      const place = isMany ? domainOf(peer) : peer;
      const key = `${side}/${place}/${isBack}`;
      const sum = sums.get(key) || { side, peer, isBack, nbytes: 0 };
      sum.nbytes += nbytes;
      sums.set(key, sum);
    }
  }
  const flows = [...sums.values()].sort((a, b) => b.nbytes - a.nbytes);
  return { isMany, flows: flows.slice(0, most), numLeftOut: flows.length - most };
}

function centreOfDomain(side, rank, frame) {
  const box = cells[side].get(rank)?.closest(".domain").getBoundingClientRect();
  return box && [box.left - frame.left + box.width / 2, box.top - frame.top + box.height / 2];
}

function arrowHead() {
  return draw("defs", {}, draw("marker", { id: "arrow-head", viewBox: "0 0 8 8", refX: 7,
    refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse",
    orient: "auto-start-reverse" }, draw("path", { d: "M0,0 L8,4 L0,8 z", class: "arrow-tip" })));
}

function drawArrows() {
  const layer = byId("arrows");
  layer.replaceChildren();
  const { rank, side, tensor } = state;
  const frames = data.topology ? "a frame a domain, whose ranks are joined by fast links" : "";
  const hint = [`A square is a rank${frames && `, ${frames}`}.`];
  if (rank !== null) {
    const frame = byId("meshes").getBoundingClientRect();
    layer.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    layer.append(arrowHead());
    const most = frame.width < 620 ? MOST_ARROWS_ON_TOP : MOST_ARROWS;
    const { isMany, flows, numLeftOut } = flowsAround(rank, tensor, most);
    const here = centreOf(side, rank, frame);
    for (const { side: where, peer, isBack, nbytes } of flows) {
      const there = (isMany ? centreOfDomain : centreOf)(where, peer, frame);
      if (!here || !there) continue;
      const share = nbytes / flows[0].nbytes;
      layer.append(isBack ? arrow(there, here, share, true) : arrow(here, there, share, false));
    }
    const per = isMany ? ", one per domain" : "";
    const few = numLeftOut > 0 ? `; the ${most} largest` : "";
    hint.push(`Blue arrows lead to rank ${rank}, orange ones from it${per}${few}.`);
  }
  byId("who-hint").textContent = hint.join(" ");
}
