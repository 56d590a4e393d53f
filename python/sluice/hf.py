"""A callback for transformers.Trainer: the model and its optimizer are offloaded, and nothing else changes.

    trainer = Trainer(model=model, …, callbacks=[sluice.hf.Callback({"device": "1GiB", "state": "storage", …})])
"""
from transformers import TrainerCallback

from ._library import InputError
from ._offload import is_offloaded, offload, rests_on_storage, restore


class Callback(TrainerCallback):
    """Offloads when training begins, with the configuration of sluice.offload(). The model stays offloaded
    afterwards, for evaluate(), predict() and save_model(); sluice.restore(model) makes it plain."""

    def __init__(self, config="auto"):
        self._config = config

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **others):
        if args.n_gpu > 1:
            raise InputError("the Trainer would use torch.nn.DataParallel; offload() trains on one device")
        # Each train() makes a new optimizer.
        if is_offloaded(model):
            restore(model)
        offload(model, optimizer, self._config)
        if args.torch_compile and rests_on_storage(model):
            restore(model)
            raise InputError("torch_compile=True needs weights in pinned memory, and some rest on storage; set weights "
                             "to 'pinned', or do without it")
