"""Frames survive whatever lies around them; nothing that is fed makes the decoder fail or grow."""

from __future__ import annotations

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from unstuck.runtime.framing import HEADER, MARK, PADDING, PAYLOAD_MAX, Decoder, Frame, Kind, encode

unhurried = settings(deadline=None)  # others use this machine, too

frames = st.builds(
    Frame,
    kind=st.sampled_from(Kind),
    nonce=st.binary(min_size=8, max_size=8),
    request=st.integers(0, 2**32 - 1),
    payload=st.one_of(st.binary(max_size=300), st.just(MARK * 20), st.just(b"\1" * PAYLOAD_MAX)),
    offset=st.integers(0, 2**32 - 1),
    message=st.integers(0, 2**32 - 1),
    blob=st.integers(0, 2**32 - 1),
)


def wire(frame: Frame) -> bytes:
    return b"".join(encode(frame))


def fed(decoder: Decoder, data: bytes, cuts: Iterable[int]) -> list[Frame]:
    found, before = [], 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        found += decoder.feed(data[before:cut])
        before = cut
    return found


@unhurried
@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 2**20), max_size=20))
def test_frames_arrive_however_the_stream_is_cut(sent: list[Frame], cuts: list[int]) -> None:
    decoder = Decoder()
    assert fed(decoder, b"".join(map(wire, sent)), cuts) == sent
    assert decoder.skipped == 0
    assert decoder.held == 0


@unhurried
@given(st.lists(frames, min_size=1, max_size=4), frames, st.integers(0, 2**20), st.binary(max_size=200))
def test_after_garbage_and_a_half_frame_of_a_predecessor_every_frame_arrives(
    sent: list[Frame], torn: Frame, cut: int, garbage: bytes
) -> None:
    half = wire(torn)
    half = half[: cut % len(half)]
    assert Decoder().feed(garbage + half + PADDING + b"".join(map(wire, sent))) == sent


@unhurried
@given(frames, st.integers(0, 2**20), st.integers(1, 255))
def test_a_frame_with_a_byte_changed_never_arrives_as_another(frame: Frame, at: int, change: int) -> None:
    whole = bytearray(wire(frame))
    whole[at % len(whole)] ^= change
    after = Frame(Kind.RESET, b"12345678", 7)
    assert Decoder().feed(bytes(whole) + PADDING + wire(after)) == [after]


@unhurried
@given(st.lists(st.binary(max_size=2000), max_size=20))
def test_garbage_is_never_a_frame_and_is_not_kept(pieces: list[bytes]) -> None:
    decoder = Decoder()
    for piece in pieces:
        assert decoder.feed(piece) == []
        assert decoder.held <= HEADER + PAYLOAD_MAX


def test_a_repeated_frame_arrives_repeatedly_and_one_inside_another_only_as_its_payload() -> None:
    inner = Frame(Kind.ASK, b"12345678", 1, b"x")
    outer = Frame(Kind.ASK, b"12345678", 2, wire(inner))
    assert Decoder().feed(wire(outer) * 2) == [outer, outer]


def test_headers_that_promise_much_cost_no_more_than_a_few_searches() -> None:
    """Each of these promises a whole payload, which is never right: to search behind each of them would take
    minutes of the host for each megabyte."""
    head = bytearray(wire(Frame(Kind.ASK, b"12345678", 1, b"y" * PAYLOAD_MAX))[:HEADER])
    hostile = bytes(head) * (4 * (PAYLOAD_MAX // HEADER))
    decoder = Decoder()
    good = Frame(Kind.HELLO, b"87654321", 0, b"{}")
    assert decoder.feed(hostile + PADDING + wire(good)) == [good]
    assert decoder.searches <= 100


@settings(unhurried, max_examples=20)
@given(st.integers(0, 2**32))
def test_two_streams_that_took_turns_lose_only_what_was_torn(seed: int) -> None:
    """A new process writes where another was cut off, again and again."""
    chance = random.Random(seed)
    decoder, expected, found = Decoder(), [], []
    for turn in range(8):
        whole = [
            Frame(Kind.ASK, bytes([turn] * 8), n, chance.randbytes(chance.randrange(3000))) for n in range(3)
        ]
        torn = wire(Frame(Kind.ASK, b"torntorn", 9, chance.randbytes(5000)))
        stream = PADDING + b"".join(map(wire, whole)) + torn[: chance.randrange(len(torn))]
        expected += whole
        for at in range(0, len(stream), 4096):
            found += decoder.feed(stream[at : at + 4096])
    found += decoder.feed(PADDING)
    assert found == expected
