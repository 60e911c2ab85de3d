"""Network cards as the kernel lists them, in folders made for the test."""

from __future__ import annotations

import pytest

from reshard.network_cards import Cards, find_cards


def write(folder, **files):
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def infiniband(system, name, rate="400 Gb/sec (4X NDR)\n", state="4: ACTIVE\n", port=1):
    write(system / "infiniband" / name / "ports" / str(port), rate=rate, state=state)


def ethernet(system, name, speed="100000\n", state="up\n", *, has_device=True):
    write(system / "net" / name, speed=speed, operstate=state)
    if has_device:
        (system / "net" / name / "device").mkdir()


def test_infiniband_ports_go_before_ethernet(tmp_path):
    for number in range(8):
        infiniband(tmp_path, f"mlx5_{number}")
    ethernet(tmp_path, "eth0")
    assert find_cards(tmp_path) == Cards(8, 50e9)


def test_only_the_fastest_ports_that_are_up_count(tmp_path):
    infiniband(tmp_path, "mlx5_0")
    infiniband(tmp_path, "mlx5_1", port=2)
    infiniband(tmp_path, "mlx5_2", rate="100 Gb/sec (4X EDR)\n")
    infiniband(tmp_path, "mlx5_3", state="1: DOWN\n")
    assert find_cards(tmp_path) == Cards(2, 50e9)


def test_ethernet_counts_where_there_is_nothing_else(tmp_path):
    ethernet(tmp_path, "eth0", "25000\n")
    ethernet(tmp_path, "eth1", "25000\n")
    ethernet(tmp_path, "eth2", "25000\n", "down\n")
    ethernet(tmp_path, "docker0", "100000\n", has_device=False)
    assert find_cards(tmp_path) == Cards(2, 3.125e9)


@pytest.mark.parametrize("speed", ["-1\n", "", "fast\n", "4294967295\n"])
def test_a_card_without_a_speed_is_none(tmp_path, speed):
    ethernet(tmp_path, "eth0", speed)
    infiniband(tmp_path, "mlx5_0", rate=speed)
    assert find_cards(tmp_path) == Cards(0, 0.0)


def test_an_interface_that_refuses_to_say_its_speed_is_none(tmp_path):
    """As loopback and virtual ones do, with an error of the kernel."""
    ethernet(tmp_path, "eth0")
    (tmp_path / "net" / "eth0" / "speed").unlink()
    (tmp_path / "net" / "eth0" / "speed").mkdir()  # reading it fails
    assert find_cards(tmp_path) == Cards(0, 0.0)


def test_a_machine_without_such_folders_has_none(tmp_path):
    assert find_cards(tmp_path / "none") == Cards(0, 0.0)


def test_this_machine_says_something():
    number, rate = find_cards()
    assert (number > 0) == (rate > 0)


def test_a_virtual_function_is_no_card_of_its_own(tmp_path):
    """A machine that shares its cards with virtual machines lists these parts of them too."""
    for name in ("eth0", "eth1"):
        ethernet(tmp_path, name)
    (tmp_path / "net" / "eth1" / "device" / "physfn").mkdir()
    assert find_cards(tmp_path) == Cards(1, 12.5e9)
    for number in range(2):
        infiniband(tmp_path, f"mlx5_{number}")
    (tmp_path / "infiniband" / "mlx5_1" / "device" / "physfn").mkdir(parents=True)
    assert find_cards(tmp_path) == Cards(1, 50e9)
