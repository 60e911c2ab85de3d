// Draws everything and keeps it up to date.

function start() {
  drawHeader();
  makeMesh("src");
  makeMesh("dst");
  applySize();
  byId("smaller").addEventListener("click", () => resize(-1));
  byId("larger").addEventListener("click", () => resize(1));
  byId("who-hint").textContent = data.topology
    ? "A frame is a domain: its ranks are joined by fast links of their own. Darker is more bytes."
    : "Darker is more bytes.";
  byId("mesh-table").append(tableOnDemand("Ranks as a table", meshTable));
  drawKinds();
  drawLinks();
  drawRounds();
  wireSelection();
  readAddress();
  for (const render of [drawChosen, paintMeshes, drawRank, drawTensor, drawArrows]) {
    whenChanged(render);
  }
  new ResizeObserver(drawArrows).observe(byId("meshes"));
}

start();
