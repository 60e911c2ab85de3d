// Elements, tables and the tip; nothing here knows plans.

/** Returns a new element; attributes that are null or false are left out. */
function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Returns a dotted name that may break after its dots and underscores. */
function breakable(name) {
  return name.split(/(?<=[._])/).flatMap((part) => [part, make("wbr")]);
}

const byId = (id) => document.getElementById(id);

/**
 * Returns a table. Columns are {title, isNumber}; cells are texts, numbers or elements.
 */
function makeTable(caption, columns, rows) {
  const head = columns.map(({ title, isNumber }) =>
    make("th", { scope: "col", class: isNumber && "number" }, title),
  );
  const body = rows.map((row) =>
    make(
      "tr",
      {},
      row.map((cell, at) => make("td", { class: columns[at].isNumber && "number" }, cell)),
    ),
  );
  return make(
    "table",
    {},
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, head)),
    make("tbody", {}, body),
  );
}

/** Returns a closed block that makes its table when it is opened. */
function tableOnDemand(summary, makeIt) {
  const details = make("details", { class: "as-table" }, make("summary", {}, summary));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) {
      details.append(make("div", { class: "scroll", tabindex: 0, role: "region",
        "aria-label": summary }, makeIt()));
    }
  });
  return details;
}

/** Returns the first rows of a table, and a button that shows all. */
function shortTable(caption, columns, rows, most) {
  const box = make("div", { class: "scroll" }, makeTable(caption, columns, rows.slice(0, most)));
  if (rows.length > most) {
    const more = make("button", { type: "button", class: "more" }, `All ${rows.length}`);
    more.addEventListener("click", () => {
      box.replaceChildren(makeTable(caption, columns, rows));
      box.setAttribute("tabindex", "0");
      box.focus();
    });
    box.append(more);
  }
  return box;
}

/** Returns a bar that is a share of the largest. */
function shareBar(share) {
  const bar = make("span", { class: "share", "aria-hidden": "true" });
  bar.style.setProperty("--share", Math.max(0, Math.min(1, share)));
  return bar;
}

const tip = byId("tip");

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const edge = document.documentElement.clientWidth - width - 8;
  tip.style.left = `${Math.max(8, Math.min(edge, x + 14))}px`;
  tip.style.top = `${y + 18 + height > window.innerHeight ? y - height - 10 : y + 18}px`;
}

function hideTip() {
  tip.hidden = true;
}

/** Draws anew whenever the element's width changes. */
function onWidth(element, render) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width && width !== last) {
      last = width;
      render(width);
    }
  }).observe(element);
}
