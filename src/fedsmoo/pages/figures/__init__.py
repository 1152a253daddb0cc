"""Figures: curves, surfaces and divisions for papers."""

# What there is to draw; draw.py says how.
FIGURES = {
    "accuracy": "test accuracy over rounds",
    "loss": "test loss over rounds",
    "train-loss": "training loss over rounds",
    "drift": "client drift over rounds",
    "rounds": "rounds to a target accuracy, or value of what leads, over the target",
    "ranks": "rank and distance to the paper, for each method and column of its table 1",
    "landscape": "loss surfaces, one laid over the others",
    "contours": "loss surfaces from above",
    "heatmap": "samples of each class at each client",
    "totals": "samples of each class over all clients",
    "sensitivity": "last accuracy over one setting",
    "spectrum": "spectral density of the Hessian",
}
OVER_ROUNDS = ("accuracy", "loss", "train-loss", "drift")
USED = {  # which figures look at a flag
    "smooth": OVER_ROUNDS,
    "axis": (*OVER_ROUNDS, "rounds"),
    "over": ("sensitivity",),
    "focus": ("landscape",),
    "apart": ("landscape",),
}
