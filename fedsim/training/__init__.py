"""Local training, the chain of defenses, and privacy budgets, without Flower.

local      the local steps of FedSGD or FedAvg, then the defenses
together   the same for several clients at once (`engine.vectorize`)
budget     the privacy budgets that defenses have spent
"""
