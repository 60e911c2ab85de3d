"""`reshard plan` and `reshard explain`: tables, documents, files."""

from __future__ import annotations

import json

import pytest
from helpers.checkpoints import write_checkpoint
from helpers.command_line import call, write_model

FIELDS = {
    *("format", "digest", "num_tensors", "src_ranks", "dst_ranks", "topology", "num_hops"),
    *("moved_bytes", "crossing_bytes", "schedule", "kinds", "loads", "sums", "floor"),
    *("links", "prediction", "planned"),
}
LINK_FIELDS = {
    *("total_bytes", "busiest", "busiest_bytes", "bytes_per_second", "busy_seconds"),
    "time_over_floor",
}
KIND_FIELDS = {
    *("name", "num_tensors", "tensor_bytes", "src", "dst", "num_geometries", "wire_dtype"),
    *("dtypes", "elementwise"),
    *("moved_bytes", "crossing_bytes", "forwarded_bytes", "copied_bytes"),
}
LOAD_FIELDS = {
    *("ranks", "network_sent_bytes", "network_received_bytes", "link_sent_bytes"),
    *("link_received_bytes", "forwarded_bytes", "copied_bytes"),
}
SPREAD_FIELDS = {
    *("total_bytes", "min_bytes", "mean_bytes", "max_bytes", "max_over_mean", "busiest_rank"),
}


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


def test_tables(model, capsys):
    done = call(capsys, "plan", model, "--topology", "dgx-h100")
    assert done.code == 0
    assert not done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("tiny: 7 parameters in 2 layers")
    assert lines[0].endswith("; pp2,dp2 -> tp4")
    assert any(
        line.split()[:2] == ["model.layers.*.self_attn.q_proj.weight", "2"] for line in lines
    )
    assert any(line.split() == ["source", "ranks", "4", "(0", "to", "3)"] for line in lines)
    assert "received by destinations" in done.out
    assert "Floor: " in done.out
    assert "of which the floor is " in done.out
    assert max(map(len, lines)) <= 110
    assert all(line == line.rstrip() for line in lines)


def test_no_topology_no_floor(model, capsys):
    assert "No topology was given" in call(capsys, "plan", model).out
    document = call(capsys, "plan", model, "--json").document
    assert document["floor"] is None
    assert document["prediction"] is None
    assert document["topology"] is None
    assert document["crossing_bytes"] is None


def test_document(model, capsys):
    done = call(capsys, "plan", model, "--topology", "dgx-h100", "--json")
    assert (done.code, done.err) == (0, "")
    document = done.document
    assert set(document) == FIELDS
    assert all(set(kind) == KIND_FIELDS for kind in document["kinds"])
    assert set(document["loads"]) == LOAD_FIELDS
    assert all(set(row) == SPREAD_FIELDS for row in document["sums"].values())
    assert set(document["sums"]) == {
        *("sent_by_sources", "received_by_destinations", "forwarded_by_destinations"),
    }
    assert set(document["floor"]) == {"seconds", "reason", "crossing_bytes", "cuts"}
    assert {field for cut in document["floor"]["cuts"] for field in cut} == {
        *("name", "bytes", "bytes_per_second", "seconds"),
    }
    assert set(document["prediction"]) == {
        *("seconds", "share_of_floor", "busiest", "busy_seconds", "num_rounds", "num_slots"),
        *("direct_seconds", "gather_and_broadcast_seconds"),
    }
    assert set(document["schedule"]) == {
        *("num_rounds", "chunk_bytes", "staging_bytes", "budget_bytes"),
    }
    assert document["src_ranks"] == [[0, 3]]
    assert document["dst_ranks"] == [[4, 7]]


def test_the_document_says_what_was_planned(model, capsys):
    arguments = ["--topology", "dgx-h100", "--staging", "32MiB", "--cast", "float32:bfloat16"]
    done = call(capsys, "plan", model, *arguments, "--allow-unmatched", "x.*", "--json")
    assert done.document["planned"] == {
        "model": "tiny",
        "to_model": "tiny",
        "from": "pp2,dp2",
        "to": "tp4",
        "is_colocated": False,
        "casts": ["float32:bfloat16"],
        "idle_casts": [],
        "allow_unmatched": ["x.*"],
        "topology": "dgx-h100",
        "staging_bytes": 32 << 20,
    }


def test_loads_per_kind_of_link(model, capsys):
    arguments = ["plan", model, "--topology", "gb200-nvl72:4"]
    document = call(capsys, *arguments, "--json").document
    loads, links = document["loads"], document["links"]
    assert set(links) == {"inside_domains", "network_cards"}
    assert all(set(row) == LINK_FIELDS for row in links.values())
    for name, prefix in (("inside_domains", "link"), ("network_cards", "network")):
        sent, received = loads[f"{prefix}_sent_bytes"], loads[f"{prefix}_received_bytes"]
        assert links[name]["total_bytes"] == sum(sent) == sum(received) > 0
        assert links[name]["busiest_bytes"] == max(sent + received)
        assert links[name]["busiest"].endswith(f"rank {links[name]['busiest'].split()[-1]}")
        seconds = links[name]["busiest_bytes"] / links[name]["bytes_per_second"]
        assert links[name]["busy_seconds"] == pytest.approx(seconds)
        over = seconds / document["floor"]["seconds"]
        assert links[name]["time_over_floor"] == pytest.approx(over)
    assert links["network_cards"]["bytes_per_second"] == 50e9
    table = call(capsys, *arguments).out
    assert "Per kind of link" in table
    assert any(line.startswith("network cards  ") for line in table.splitlines())
    assert call(capsys, "plan", model, "--json").document["links"] is None


def test_a_file_holds_the_same_document(model, capsys, tmp_path):
    path = tmp_path / "plan.json"
    done = call(capsys, "plan", model, "--json", "--output", path)
    assert json.loads(path.read_text()) == done.document


def test_degrees_topology_and_budget_change_the_plan(model, capsys):
    def digest(*arguments):
        return call(capsys, "plan", model, "--json", *arguments).document["digest"]

    others = [
        digest("--from", "tp2"),
        digest("--to", "tp2"),
        digest("--topology", "dgx-h100"),
        digest("--staging", "32MiB"),
        digest("--colocated"),
        digest("--cast", "float32:bfloat16"),
    ]
    assert digest() == digest()
    assert len({digest(), *others}) == 7


def test_colocated_sides_share_their_ranks(model, capsys):
    document = call(capsys, "plan", model, "--colocated", "--json").document
    assert document["src_ranks"] == document["dst_ranks"] == [[0, 3]]
    assert sum(document["loads"]["copied_bytes"]) > 0


def test_casts_change_what_the_source_stores(model, capsys):
    document = call(capsys, "plan", model, "--cast", "float32:bfloat16", "--json").document
    for kind in document["kinds"]:
        assert (kind["src"]["dtype"], kind["dst"]["dtype"]) == ("float32", "bfloat16")
        assert kind["wire_dtype"] == "bfloat16"


def test_explain(model, capsys):
    done = call(capsys, "explain", model, "model.layers.1.self_attn.q_proj.weight", 5)
    assert done.code == 0
    assert "rank 5 holds [16:32, 0:32]" in done.out
    assert "one of 2 holders" in done.out


def test_explain_as_a_document(model, capsys):
    name = "model.layers.1.self_attn.q_proj.weight"
    document = call(capsys, "explain", model, name, 5, "--json").document
    place = {"sides", "host", "domain"}
    assert set(document) == {"name", "rank", "digest", "tensors", "peers", "totals"} | place
    (tensor,) = document["tensors"]
    fields = {"name", "dims", "wire_dtype", "elementwise", "src", "dst", "sends", "receives"}
    assert set(tensor) == fields
    assert tensor["src"]["holds"] == []
    assert (tensor["src"]["ranks"], tensor["dst"]["ranks"]) == ([[2, 3]], [[4, 7]])
    assert tensor["dst"]["holds"] == [{"start": [16, 0], "stop": [32, 32]}]
    assert sum(move["bytes"] for move in tensor["receives"]) == 16 * 32 * 2
    for move in tensor["receives"]:
        assert set(move) == {
            *("start", "stop", "peer", "is_local", "link", "hop", "bytes", "num_holders", "why"),
        }
        assert move["peer"] in (2, 3)
        assert move["num_holders"] == 2


def test_explain_says_over_which_link(model, capsys):
    arguments = ["explain", model, "model.layers.1.self_attn.q_proj.weight", 5]
    alone = call(capsys, *arguments)
    assert "over the network" not in alone.out
    assert "inside the domain" not in alone.out
    done = call(capsys, *arguments, "--topology", "dgx-h100")
    assert "from rank 2 inside the domain; rank 2 is" in done.out
    far = call(capsys, *arguments, "--topology", "gb200-nvl72:4")
    assert "from rank 2 over the network; rank 2 is" in far.out


def test_explain_of_a_rank_alone_adds_up_all_tensors(model, capsys):
    arguments = ["explain", model, 5, "--topology", "gb200-nvl72:4"]
    document = call(capsys, *arguments, "--json").document
    assert (document["name"], document["tensors"]) == (None, [])
    assert [document[name] for name in ("sides", "host", "domain")] == [["destination"], 18, 1]
    received = [each for each in document["totals"] if each["verb"] == "receives"]
    # tp4 of the tiny model: a quarter of six tensors, and the whole of two.
    nbytes = 2 * (64 * 32 * 5 // 4 + 2 * 32)
    assert [each["bytes"] for each in received if each["link"] is None] == [nbytes]
    assert [each["num_tensors"] for each in received if each["link"] is None] == [7]
    assert sum(p["bytes"] for p in document["peers"] if p["verb"] == "receives") == nbytes
    assert {(each["peer"] < 4, each["link"]) for each in document["peers"]} <= {
        *((True, "network"), (False, "inside the domain")),
    }
    table = call(capsys, *arguments).out
    assert table.startswith("rank 5 is of the destination, on host 18 in domain 1 of gb200-nvl72")
    assert "Rank 5 by peer" in table
    rows = [line.split() for line in table[table.index("In all") :].splitlines()]
    assert [row[1] for row in rows if row[:1] == ["receives"]] == ["network", "inside", "all"]
    far = call(capsys, "explain", model, 1, "--topology", "gb200-nvl72:4").out
    rows = [line.split() for line in far[far.index("In all") :].splitlines()]
    assert [row[1] for row in rows if row[:1] == ["sends"]] == ["network"]


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_checkpoints_by_index_and_by_folder(family, capsys, tmp_path):
    index = write_checkpoint(tmp_path / "checkpoint", family)
    arguments = ["--from", "ep2", "--to", "tp2", "--json"]
    by_index = call(capsys, "plan", index, *arguments)
    assert by_index.code == 0, by_index.err
    assert by_index.document == call(capsys, "plan", index.parent, *arguments).document
    stacked = call(capsys, "plan", index, "--experts", "stacked", *arguments).document
    assert stacked["num_tensors"] < by_index.document["num_tensors"]
