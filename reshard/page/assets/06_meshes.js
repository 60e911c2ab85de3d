// Both sides as grids of ranks, by domain and host; coloured by load, or by a rank's peers.

const STEPS = 8;
const CELL_SIZES = [8, 11, 14, 18, 24, 32, 44];
const cells = { src: new Map(), dst: new Map() };
const TALL_ENOUGH = 760;
let cellSize = CELL_SIZES[0];
let isSizeChosen = false;

/** Takes the largest cells with which both sides are seen at once. */
function fitSize() {
  // By halves, as each try lays out the page.
  let [low, high] = [0, CELL_SIZES.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    byId("meshes").style.setProperty("--cell", `${CELL_SIZES[middle]}px`);
    if (isSeenAtOnce()) low = middle;
    else high = middle - 1;
  }
  cellSize = CELL_SIZES[low];
  applySize();
}

function isSeenAtOnce() {
  const heights = ["src", "dst"].map((side) => byId(`mesh-${side}`).offsetHeight);
  const isBeside = byId("meshes").offsetHeight < heights[0] + heights[1];
  return isBeside ? Math.max(...heights) <= TALL_ENOUGH : sumOf(heights) <= 2 * TALL_ENOUGH;
}

/** Returns the ranks of a side by domain, and in it by host. */
function placesOf(side) {
  const domains = new Map();
  for (const rank of sides[side]) {
    const domain = domainOf(rank);
    if (!domains.has(domain)) domains.set(domain, new Map());
    const hosts = domains.get(domain);
    if (!hosts.has(hostOf(rank))) hosts.set(hostOf(rank), []);
    hosts.get(hostOf(rank)).push(rank);
  }
  return domains;
}

function makeCell(side, rank) {
  const cell = make("button", { type: "button", class: "cell", tabindex: -1, "data-rank": rank,
    "data-side": side }, make("span", { class: "digits" }, `${rank}`));
  cells[side].set(rank, cell);
  return cell;
}

function makeMesh(side) {
  const mesh = byId(`mesh-${side}`);
  const name = side === "src" ? "Source" : "Destination";
  mesh.setAttribute("role", "group");
  mesh.setAttribute("aria-label", `${name} ranks; arrow keys move, Enter selects, Escape clears`);
  for (const [domain, hosts] of placesOf(side)) {
    const blocks = [...hosts].map(([host, list]) => {
      const block = make("div", { class: "host", title: data.topology && `host ${host}` });
      block.style.setProperty("--across", list.length > 16 ? 8 : Math.min(4, list.length));
      block.append(...list.map((rank) => makeCell(side, rank)));
      return block;
    });
    const frame = make("div", { class: "hosts" }, blocks);
    const label = data.topology ? [make("span", { class: "word" }, "domain "), `${domain}`]
      : "all ranks";
    mesh.append(make("div", { class: "domain", "data-domain": domain },
      make("span", { class: "domain-name", "aria-hidden": "true" }, label), frame));
  }
  const first = cells[side].get(sides[side][0]);
  if (first) first.tabIndex = 0;
  mesh.addEventListener("click", (event) => chooseCell(event.target.closest(".cell")));
  mesh.addEventListener("keydown", (event) => moveFocus(event, side));
  mesh.addEventListener("pointermove", (event) => {
    const cell = event.target.closest(".cell");
    if (cell) showTip(cell.getAttribute("aria-label"), event.clientX, event.clientY);
    else hideTip();
  });
  mesh.addEventListener("pointerleave", hideTip);
  mesh.addEventListener("focusin", (event) => setCurrent(event.target, side));
}

function chooseCell(cell) {
  if (!cell) return;
  const rank = Number(cell.dataset.rank);
  const isChosen = state.rank === rank && state.side === cell.dataset.side;
  select(isChosen ? { rank: null } : { rank, side: cell.dataset.side });
}

function setCurrent(cell, side) {
  if (!cell.classList.contains("cell")) return;
  for (const other of byId(`mesh-${side}`).querySelectorAll('.cell[tabindex="0"]')) {
    other.tabIndex = -1;
  }
  cell.tabIndex = 0;
}

function moveFocus(event, side) {
  const list = [...cells[side].values()];
  const at = list.indexOf(event.target);
  if (at < 0) return;
  const to = {
    ArrowRight: () => list[at + 1],
    ArrowLeft: () => list[at - 1],
    ArrowDown: () => neighbour(list, event.target, 1),
    ArrowUp: () => neighbour(list, event.target, -1),
    Home: () => list[0],
    End: () => list.at(-1),
  }[event.key];
  if (!to) return;
  event.preventDefault();
  to()?.focus();
}

/** Returns the nearest cell of the next line above or below. */
function neighbour(list, from, sign) {
  const here = from.getBoundingClientRect();
  let best = null;
  let least = Infinity;
  for (const cell of list) {
    const there = cell.getBoundingClientRect();
    const down = sign * (there.top - here.top);
    if (down < 2) continue;
    const distance = down + 4 * Math.abs(there.left - here.left);
    if (distance < least) [best, least] = [cell, distance];
  }
  return best;
}

/** Returns the colour of a value: 0 for nothing, else from 1 to STEPS. */
function stepOf(value, most) {
  return value && most ? Math.max(1, Math.ceil((STEPS * value) / most)) : 0;
}

/** Returns per side what cells show: bytes per rank, what that is, and which colours. */
function valuesOf({ rank, side, tensor }) {
  if (rank === null) {
    const { src, dst } = loadsOf(tensor);
    return { src: [src, "sent", "q"], dst: [dst, "received", "q"] };
  }
  const { sent, received } = trafficOf(rank, tensor);
  const [to, from] = [sent.byPeer, received.byPeer];
  const inSrc = new Map([...from].filter(([peer]) => isOn.src.has(peer)));
  // A destination rank sends some of it on, so that others of its side are peers both ways.
  const inDst = new Map(to);
  if (side === "dst") for (const [peer, n] of from) inDst.set(peer, (inDst.get(peer) || 0) + n);
  return {
    src: [inSrc, `sent to rank ${rank}`, "p"],
    dst: [inDst, side === "dst" ? `exchanged with rank ${rank}` : `from rank ${rank}`, "p"],
  };
}

function paintMeshes() {
  const values = valuesOf(state);
  for (const side of ["src", "dst"]) {
    const [bytes, what, hue] = values[side];
    const most = Math.max(0, ...sides[side].map((rank) => bytes.get(rank) || 0));
    for (const [rank, cell] of cells[side]) {
      const nbytes = bytes.get(rank) || 0;
      const isChosen = rank === state.rank;
      cell.className = `cell ${hue}${stepOf(nbytes, most)}${isChosen ? " chosen" : ""}`;
      cell.setAttribute("aria-pressed", isChosen);
      const place = data.topology ? `, host ${hostOf(rank)}, domain ${domainOf(rank)}` : "";
      cell.setAttribute("aria-label", `rank ${rank}${place}: ${formatBytes(nbytes)} ${what}`);
    }
    drawLegend(side, most, what, hue);
  }
}

function drawLegend(side, most, what, hue) {
  const scale = make("span", { class: "scale", "aria-hidden": "true" });
  for (let step = 0; step <= STEPS; step++) scale.append(make("i", { class: `${hue}${step}` }));
  const end = make("span", {}, `${most ? formatBytes(most) : "nothing"} ${what}`);
  byId(`legend-${side}`).replaceChildren(...(most ? [make("span", {}, "0"), scale, end] : [end]));
}

function resize(by) {
  isSizeChosen = true;
  let at = CELL_SIZES.findIndex((size) => size >= cellSize);
  if (at < 0) at = CELL_SIZES.length - 1;
  cellSize = CELL_SIZES[Math.max(0, Math.min(CELL_SIZES.length - 1, at + by))];
  applySize();
}

function applySize() {
  const meshes = byId("meshes");
  meshes.style.setProperty("--cell", `${cellSize}px`);
  meshes.classList.toggle("small", cellSize < 24);
  meshes.classList.toggle("tiny", cellSize < 14);
  byId("smaller").disabled = cellSize <= CELL_SIZES[0];
  byId("larger").disabled = cellSize >= CELL_SIZES.at(-1);
  drawArrows();
}

function meshTable() {
  const columns = [{ title: "Rank", isNumber: true }, { title: "Side" },
    { title: "Host", isNumber: true }, { title: "Domain", isNumber: true },
    { title: "Sent, network", isNumber: true }, { title: "Sent, domain", isNumber: true },
    { title: "Received, network", isNumber: true }, { title: "Received, domain", isNumber: true },
    { title: "Copied in place", isNumber: true }];
  const { figures } = data;
  const rows = ranks.map((rank, at) => [
    rankButton(rank), ["src", "dst"].filter((side) => isOn[side].has(rank))
      .map((side) => (side === "src" ? "source" : "destination")).join(", "),
    data.topology ? hostOf(rank) : "\u2013", data.topology ? domainOf(rank) : "\u2013",
    formatBytes(figures.networkSent[at]), formatBytes(figures.linkSent[at]),
    formatBytes(figures.networkReceived[at]), formatBytes(figures.linkReceived[at]),
    formatBytes(figures.copied[at]),
  ]);
  return makeTable("What each rank sends and receives, all tensors", columns, rows);
}
