"""Whole training steps: forward, loss, backward, clipping and update as one program."""

from precast.training.train_step import TrainStep as TrainStep
from precast.training.train_step import train_step as train_step
