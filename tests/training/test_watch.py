"""Which process has ended: one without a heartbeat for long enough, the same one for all who ask."""

import threading

import torch

from precast.training import watch
from precast.training.watch import Watch


def test_all_name_the_process_whose_heartbeat_has_stopped(monkeypatch):
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(watch, "_PATIENCE", 1.0)
    living = [Watch(rank, 4) for rank in (0, 1, 3)]
    for each in living:
        each.start()
    found = []
    asking = [threading.Thread(target=lambda each=each: found.append(each.ended())) for each in living]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    for each in living:
        each.leave()
    assert found == [[2], [2], [2]]


def test_nobody_is_named_while_all_have_heartbeats(monkeypatch):
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    living = [Watch(rank, 2) for rank in range(2)]
    for each in living:
        each.start()
    assert living[0].ended() == []
    for each in living:
        each.leave()
