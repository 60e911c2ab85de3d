// Sums over streams: what ranks send and receive, of all tensors or of one.

/** Bytes per element that go at hop 0 and later, per turn and over all turns of a kind. */
function weightsOf(kind) {
  if (kind.weights) return kind.weights;
  const flow = data.flows[kind.flow];
  const turns = new Map();
  const all = [0, 0];
  for (const { turns: list, first, later } of kind.groups) {
    for (const turn of list) {
      if (!turns.has(turn)) turns.set(turn, [0, 0]);
      const weight = turns.get(turn);
      weight[0] += first;
      weight[1] += later;
      all[0] += first;
      all[1] += later;
    }
  }
  kind.weights = [["always", all], ...(flow.period > 1 ? turns : [])];
  return kind.weights;
}

/** Weights of one tensor alone. */
function weightsOfTensor({ group, index }) {
  const weight = [group.first, group.later];
  const isTurning = data.flows[group.kind.flow].period > 1;
  return [["always", weight], ...(isTurning ? [[group.turns[index], weight]] : [])];
}

/** Calls visit(hop, sender position, taker position, bytes) for all streams of a kind. */
function eachStream(kind, weights, visit) {
  const { turns } = data.flows[kind.flow];
  for (const [turn, weight] of weights) {
    const { volumes, hops } = turns[turn];
    for (const [hopText, flat] of Object.entries(hops)) {
      const hop = Number(hopText);
      const factor = weight[hop ? 1 : 0];
      for (let at = 0; at < flat.length; at += 3) {
        visit(hop, flat[at], flat[at + 1], volumes[flat[at + 2]] * factor);
      }
    }
  }
}

/** Returns the kinds that count, with their weights: all, or that of one tensor. */
function shares(tensor) {
  if (tensor) return [[tensor.group.kind, weightsOfTensor(tensor)]];
  return data.kinds.map((kind) => [kind, weightsOf(kind)]);
}

class Peers {
  constructor() {
    this.entries = new Map();
    this.total = 0;
  }

  add(peer, hop, nbytes) {
    const key = `${peer}/${hop}`;
    const entry = this.entries.get(key);
    if (entry) entry.nbytes += nbytes;
    else this.entries.set(key, { peer, hop, nbytes });
    this.total += nbytes;
  }

  /** Entries of one peer and hop each, the largest first. */
  get sorted() {
    return [...this.entries.values()].sort((a, b) => b.nbytes - a.nbytes || a.peer - b.peer);
  }

  /** Bytes per peer. */
  get byPeer() {
    const sums = new Map();
    for (const { peer, nbytes } of this.entries.values()) {
      sums.set(peer, (sums.get(peer) || 0) + nbytes);
    }
    return sums;
  }
}

// Several parts of the page ask for the same sums.
let lastTraffic = {};

/** Returns what a rank sends to and receives from each peer, of all tensors or of one. */
function trafficOf(rank, tensor) {
  if (lastTraffic.rank === rank && lastTraffic.tensor === tensor) return lastTraffic.found;
  lastTraffic = { rank, tensor, found: sumTraffic(rank, tensor) };
  return lastTraffic.found;
}

function sumTraffic(rank, tensor) {
  const sent = new Peers();
  const received = new Peers();
  const copied = new Peers();
  for (const [kind, weights] of shares(tensor)) {
    const srcRanks = rankLists[kind.src];
    const dstRanks = rankLists[kind.dst];
    const src = positionsOf[kind.src].get(rank) ?? -1;
    const dst = positionsOf[kind.dst].get(rank) ?? -1;
    if (src < 0 && dst < 0) continue;
    eachStream(kind, weights, (hop, from, to, nbytes) => {
      const isSender = from === (hop ? dst : src);
      if (!isSender && to !== dst) return;
      const sender = (hop ? dstRanks : srcRanks)[from];
      const taker = dstRanks[to];
      if (sender === taker) copied.add(rank, hop, nbytes);
      else if (isSender) sent.add(taker, hop, nbytes);
      else received.add(sender, hop, nbytes);
    });
  }
  return { sent, received, copied };
}

/** Returns bytes that each rank sends and receives over links, of all tensors or of one. */
function loadsOf(tensor) {
  const { networkSent, linkSent, networkReceived, linkReceived } = data.figures;
  if (!tensor) {
    return {
      src: new Map(ranks.map((rank, at) => [rank, networkSent[at] + linkSent[at]])),
      dst: new Map(ranks.map((rank, at) => [rank, networkReceived[at] + linkReceived[at]])),
    };
  }
  const loads = { src: new Map(), dst: new Map() };
  for (const [kind, weights] of shares(tensor)) {
    eachStream(kind, weights, (hop, from, to, nbytes) => {
      const sender = rankLists[hop ? kind.dst : kind.src][from];
      const taker = rankLists[kind.dst][to];
      if (sender === taker) return;
      loads.src.set(sender, (loads.src.get(sender) || 0) + nbytes);
      loads.dst.set(taker, (loads.dst.get(taker) || 0) + nbytes);
    });
  }
  return loads;
}

/** Returns what a rank holds of one side: per group of tensors its boxes, the largest first. */
function holdingsOf(rank, side) {
  const found = new Map();
  for (const group of groups) {
    const position = positionsOf[group.kind[side]].get(rank);
    if (position === undefined) continue;
    const geometry = data.geometries[group.kind.geometry];
    const region = geometry[side].regions[geometry[side].held[position]];
    const boxes = boxesOf(region, geometry.shape.length);
    const count = group.turns.length;
    const nbytes = numElementsIn(boxes) * (side === "src" ? group.first : group.later) * count;
    if (!boxes.length) continue;
    const key = `${group.name}/${boxes.map(boxText).join()}/${geometry.shape}`;
    const entry = found.get(key);
    if (entry) {
      entry.count += count;
      entry.nbytes += nbytes;
    } else found.set(key, { group, boxes, count, nbytes, shape: geometry.shape });
  }
  return [...found.values()].sort((a, b) => b.nbytes - a.nbytes);
}
