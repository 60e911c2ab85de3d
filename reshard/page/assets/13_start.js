// Draws everything and keeps it up to date.

function start() {
  drawHeader();
  makeMesh("src");
  makeMesh("dst");
  fitSize();
  window.addEventListener("resize", () => (isSizeChosen ? drawArrows() : fitSize()));
  byId("smaller").addEventListener("click", () => resize(-1));
  byId("larger").addEventListener("click", () => resize(1));
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
