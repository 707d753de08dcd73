"""Which GPU a process of pytest-xdist begins with."""

import torch
import workers


def test_each_process_begins_with_another_gpu_and_sees_all():
    seen = [workers.gpus_of(f"gw{i}", 3) for i in range(4)]
    assert seen == ["0,1,2", "1,2,0", "2,0,1", "0,1,2"]


def test_what_was_asked_for_stays(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    workers.begin_with_different_gpus()
    assert workers.os.environ["CUDA_VISIBLE_DEVICES"] == "1,0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    workers.begin_with_different_gpus()
    assert workers.os.environ["CUDA_VISIBLE_DEVICES"] == "0"
