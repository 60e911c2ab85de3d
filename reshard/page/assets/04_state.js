// What is selected, in the address too (#rank=3&tensor=name), and who draws when it changes.

const state = { rank: null, side: null, tensor: null };
const listeners = [];

/** Calls render(state) now and after every change. */
function whenChanged(render) {
  listeners.push(render);
  render(state);
}

function readAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const rank = wanted.has("rank") ? Number(wanted.get("rank")) : null;
  state.rank = indexOfRank.has(rank) ? rank : null;
  state.tensor = wanted.has("tensor") ? findTensor(wanted.get("tensor")) : null;
  if (state.rank === null || !isOn[state.side]?.has(state.rank)) {
    state.side = state.rank === null ? null : isOn.src.has(state.rank) ? "src" : "dst";
  }
  for (const render of listeners) render(state);
}

function select(change) {
  const next = { ...state, ...change };
  if (change.side) state.side = change.side;
  const wanted = new URLSearchParams();
  if (next.rank !== null) wanted.set("rank", next.rank);
  if (next.tensor) wanted.set("tensor", next.tensor.name);
  const text = wanted.toString();
  history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  readAddress();
}

/** Returns a button that selects a rank. */
function rankButton(rank, side) {
  return make(
    "button",
    { type: "button", class: "link", "data-rank": rank, onclick: () => select({ rank, side }) },
    `${rank}`,
  );
}

function chip(text, clear, label) {
  return make("span", { class: "chip" }, make("span", { class: "chip-text" }, text),
    make("button", { type: "button", "aria-label": label, onclick: clear }, "\u00d7"));
}

function drawChosen({ rank, tensor }) {
  const chips = [];
  if (rank !== null) {
    chips.push(chip(`Rank ${rank}`, () => select({ rank: null }), "Clear the rank"));
  }
  if (tensor) chips.push(chip(tensor.name, () => select({ tensor: null }), "Clear the tensor"));
  if (!chips.length) chips.push(make("span", { class: "muted" }, "Nothing selected"));
  byId("chosen").replaceChildren(...chips);
}

/** Selects what a text means: `rank 5`, `5`, or the first tensor whose name has it. */
function find(text) {
  const wanted = text.trim();
  const number = /^(?:rank\s*)?(\d+)$/i.exec(wanted);
  if (number && indexOfRank.has(Number(number[1]))) {
    const rank = Number(number[1]);
    select({ rank });
    return `Rank ${rank} selected`;
  }
  const tensor = wanted && (findTensor(wanted) || firstTensorWith(wanted.toLowerCase()));
  if (!tensor) return `Nothing is called \u201c${wanted}\u201d`;
  select({ tensor });
  return `${tensor.name} selected`;
}

function firstTensorWith(part) {
  for (const members of families.values()) {
    for (const [group, index] of members) {
      const name = nameOf(group, index);
      if (name.toLowerCase().includes(part)) return { group, index, name };
    }
  }
  return null;
}

function wireSelection() {
  window.addEventListener("hashchange", readAddress);
  byId("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const query = byId("query");
    const said = find(query.value);
    query.setAttribute("aria-invalid", said.startsWith("Nothing"));
    if (said.startsWith("Nothing")) {
      byId("chosen").append(make("span", { class: "problem" }, said));
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.target === byId("query")) return;
    hideTip();
    if (state.rank !== null) select({ rank: null });
    else if (state.tensor) select({ tensor: null });
  });
  document.querySelector("[data-skip]").addEventListener("click", (event) => {
    event.preventDefault();
    byId("who").focus();
  });
}
