"""What waits to be read; how calls read and speak is tested with text and with audio."""

from __future__ import annotations

import torch
from torch import Tensor

from metronome_cli.models.talk import Inbox, Piece, owned


def shown(pieces: list[Piece]) -> list[object]:
    return [piece if isinstance(piece, list) else piece.tolist() for piece in pieces]


def test_an_inbox_gives_its_tokens_in_order_and_cuts_pieces_where_it_must() -> None:
    inbox = Inbox([1, 2, 3])
    inbox.add(torch.tensor([[4.0], [5.0], [6.0]]))
    inbox.add([])
    inbox.add([7])
    assert (len(inbox), inbox.ids) == (7, 4)
    assert shown(inbox.take(2)) == [[1, 2]]
    assert shown(inbox.take(3)) == [[3], [[4.0], [5.0]]]
    assert (len(inbox), inbox.ids) == (2, 1)
    assert shown(inbox.take(99)) == [[[6.0]], [7]]
    assert not inbox
    assert inbox.take(5) == []


def test_what_waits_shares_no_memory_with_what_others_heard() -> None:
    heard = torch.zeros(100, 8)
    inbox = Inbox()
    inbox.add(heard[3:5])
    inbox.own()
    (piece,) = inbox.take(2)
    assert isinstance(piece, Tensor)
    assert piece.untyped_storage().nbytes() == 2 * 8 * 4
    assert owned(piece) is piece
