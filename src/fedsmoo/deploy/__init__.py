"""Past one process: the same methods as a real federation of clients, by Flower.

``client.answer`` trains one round, ``server.Coordinator`` keeps the state and aggregates; neither knows a network.
``judge`` and ``members`` decide which replies count. ``flower`` and ``strategy`` connect both to Flower.
"""
