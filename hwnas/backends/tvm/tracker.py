"""Asks the tracker of TVM's RPC for a device that is free; TVM's own client may wait for ever."""

import socket
import struct
import time
from collections.abc import Sequence

from tvm.rpc import base

from hwnas.errors import DeviceError
from hwnas.target import Remote

_ANSWER_S = 5.0  #: in which a tracker says what it knows


def request(remote: Remote, deadline: float, mute: Sequence[str]) -> tuple[str, int, str]:
    """Return address, port and key of a device that is free; wait for one until the deadline.

    Args:
        remote: The tracker, and the key of the devices.
        deadline: When to give up, on the monotonic clock.
        mute: Devices that the tracker named before and that did not answer.

    Raises:
        DeviceError: no device is free in time, or there is no tracker.
    """
    try:
        with _dial(remote, max(0.1, deadline - time.monotonic())) as tracker:
            base.sendjson(tracker, [base.TrackerCode.REQUEST, remote.key, "", 1])
            code, found = base.recvjson(tracker)
    except TimeoutError:
        raise DeviceError(_nobody(remote, mute)) from None
    except (OSError, ValueError) as error:
        raise DeviceError(_no_tracker(remote, error)) from None
    if code != base.TrackerCode.SUCCESS:
        raise DeviceError(f"The tracker at {remote.tracker} refuses '{remote.key}': {found}.")
    host, port, key = found
    return host, port, key


def _dial(remote: Remote, timeout_s: float) -> socket.socket:
    """Return a connection to the tracker."""
    host, _, port = remote.tracker.rpartition(":")
    tracker = socket.create_connection((host, int(port)), timeout_s)
    try:
        magic = struct.pack("<i", base.RPC_TRACKER_MAGIC)
        tracker.sendall(magic)
        if base.recvall(tracker, len(magic)) != magic:
            raise ValueError("what answers there is no tracker")
    except BaseException:
        tracker.close()
        raise
    return tracker


def _nobody(remote: Remote, mute: Sequence[str]) -> str:
    """Return what the tracker knows when it has no device to give."""
    try:
        with _dial(remote, _ANSWER_S) as tracker:
            base.sendjson(tracker, [base.TrackerCode.SUMMARY])
            _, summary = base.recvjson(tracker)
    except (OSError, ValueError) as error:
        return _no_tracker(remote, error)
    keys = [server["key"].removeprefix("server:") for server in summary["server_info"]]
    n_mine, others = keys.count(remote.key), sorted({*keys} - {remote.key})
    found = f"{n_mine} registered, none free" if n_mine else "none registered"
    found += f", {len(mute)} without an answer ({', '.join(mute)})" if mute else ""
    found += f", other keys: {', '.join(others)}" if others else ""
    return (
        f"No device '{remote.key}' at {remote.tracker} within {remote.timeout_s:g} s: {found}. "
        "Start it, on the device, with: "
        f"python -m tvm.exec.rpc_server --tracker {remote.tracker} --key {remote.key} "
        "--host 127.0.0.1 --port 9090 --custom-addr 127.0.0.1, behind "
        "ssh -L 9090:localhost:9090: TVM's RPC is not authenticated."
    )


def _no_tracker(remote: Remote, error: Exception) -> str:
    port = remote.tracker.rpartition(":")[2]
    return (
        f"No tracker answers at {remote.tracker} for device '{remote.key}': {error}. "
        f"Start it with: python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port {port} "
        f"--port-end {int(port) + 1}   TVM's RPC is not authenticated: whoever reaches it runs "
        "code. Keep it on 127.0.0.1 and tunnel to the device: "
        f"ssh -L 9090:localhost:9090 -R {port}:localhost:{port} USER@DEVICE"
    )
