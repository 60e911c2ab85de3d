// The figures on top.

function tile(name, value, more, nbytes) {
  return make("div", { class: "tile" }, make("dt", {}, name),
    make("dd", { "data-bytes": nbytes }, value, make("small", {}, more)));
}

const sumOf = (list) => list.reduce((a, b) => a + b, 0);

function drawHeader() {
  const { figures, topology } = data;
  byId("title").textContent = data.title;
  const crossing = sumOf(figures.networkReceived);
  const moved = crossing + sumOf(figures.linkReceived);
  const copied = sumOf(figures.copied);
  const sameRanks = sides.src.filter((rank) => isOn.dst.has(rank)).length;
  const tiles = [
    tile("Weights", formatBytes(data.modelBytes),
      `${data.numTensors.toLocaleString("en")} tensors`),
    tile("Ranks", `${sides.src.length} \u2192 ${sides.dst.length}`,
      sameRanks ? `${sameRanks} on both sides` : "source to destination, apart"),
    tile("Moved between ranks", formatBytes(moved),
      copied ? `${formatBytes(copied)} copied in place` : "none copied in place", moved),
  ];
  if (topology) {
    const { floor, seconds } = figures;
    const binding = floor.cuts[0];
    const share = seconds ? floor.seconds / seconds : 1;
    tiles.push(
      tile("Over the network", formatBytes(crossing),
        `${countText(topology.domainRates.length, "domain")}, ${topology.name}`, crossing),
      tile("Floor", formatSeconds(floor.seconds),
        binding ? `no plan is faster: ${binding.name}` : "nothing has to move"),
      ...(binding ? [tile("Busiest", `${(figures.busySeconds / floor.seconds).toFixed(2)} x floor`,
        `${figures.busiestLink}, ${formatSeconds(figures.busySeconds)}`)] : []),
      tile("Predicted", formatSeconds(seconds),
        `busiest: ${figures.busiest}; the floor is ${(100 * share).toFixed(1)} % of it`),
    );
  }
  byId("tiles").replaceChildren(...tiles);
}
