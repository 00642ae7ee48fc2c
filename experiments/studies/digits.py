# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Image super-resolution as text: the 8x8 digits that come with scikit-learn, as token ids.

A sequence has 81 tokens: the 4x4 image, a separator, then the 8x8 image, both in raster order. A
token is an intensity: ids 0 .. 16 are the 17 intensities in their order, and the separator comes
after them.
"""

from pathlib import Path

import numpy as np

from specjax.training.token_files import TRAIN, VALIDATION, TokenFolder

SIZE = 8  # of the larger image, in pixels; the smaller one has half
BRIGHTEST = 16
SEPARATOR = BRIGHTEST + 1
VOCABULARY_SIZE = SEPARATOR + 1
NUM_PIXELS = SIZE**2
PROMPT_LENGTH = (SIZE // 2) ** 2 + 1  # the 4x4 image and the separator
SEQUENCE_LENGTH = PROMPT_LENGTH + NUM_PIXELS


def load_images() -> np.ndarray:
  """The digits, `[1797, 8, 8]` int32 intensities in 0 .. 16.

  Raises:
    ImportError: without scikit-learn, saying how to get it.
  """
  try:
    from sklearn.datasets import load_digits
  except ModuleNotFoundError as error:
    # A package that is there but lacks something of its own says so itself.
    if error.name != "sklearn":
      raise
    raise ImportError(
      "the digits come with the package scikit-learn: pip install 'specjax[digits]'"
    ) from None
  return load_digits().images.astype(np.int32)


def low_resolution(images: np.ndarray) -> np.ndarray:
  """`[N, 8, 8]` to `[N, 4, 4]`: the mean of 2x2 pixels, rounded, halves upwards."""
  half = SIZE // 2
  return (images.reshape(-1, half, 2, half, 2).sum(axis=(2, 4)) + 2) // 4


def nearest_neighbour(small: np.ndarray) -> np.ndarray:
  """`[N, 4, 4]` to `[N, 8, 8]` without any model: each pixel four times."""
  return small.repeat(2, axis=1).repeat(2, axis=2)


def encode(images: np.ndarray) -> np.ndarray:
  """Images `[N, 8, 8]` with what a model is told of them, as sequences `[N, 81]` int32.

  Raises:
    ValueError: for another shape, or intensities out of 0 .. 16.
  """
  if images.ndim != 3 or images.shape[1:] != (SIZE, SIZE):
    raise ValueError(f"images must have shape [N, {SIZE}, {SIZE}], got {images.shape}")
  if images.size and not 0 <= images.min() <= images.max() <= BRIGHTEST:
    raise ValueError(
      f"images must have intensities in 0 .. {BRIGHTEST}, got {images.min()} .. {images.max()}"
    )
  count = len(images)
  separator = np.full((count, 1), SEPARATOR)
  parts = (low_resolution(images).reshape(count, -1), separator, images.reshape(count, -1))
  return np.concatenate(parts, axis=1).astype(np.int32)


def decode(pixels: np.ndarray) -> np.ndarray:
  """Tokens `[N, 64]` as images `[N, 8, 8]`.

  A separator, which no trained model puts among pixels, shows as the brightest.
  """
  return np.minimum(pixels, BRIGHTEST).reshape(-1, SIZE, SIZE)


def token_folder(folder: Path, images: np.ndarray, held_out: int) -> TokenFolder:
  """The sequences as token data to train on, written unless they are there.

  The answer begins with the separator. Its place is where the heads stand that draft the first
  block of an image: they are trained only if it counts as an answer.

  Args:
    folder: where to.
    images: `[N, 8, 8]`.
    held_out: the last images, which are for validation.
  """
  data = TokenFolder(
    folder, {"model": "digits", "vocab_size": VOCABULARY_SIZE, "held_out": held_out}
  )
  sequences = encode(images)
  for index in range(len(data.rows), len(images)):
    split = TRAIN if index < len(images) - held_out else VALIDATION
    data.append(sequences[index], PROMPT_LENGTH - 1, {"prompt": index, "split": split})
  return data


def mean_absolute_error(images: np.ndarray, truth: np.ndarray) -> float:
  """Over all pixels of both `[N, 8, 8]`, in intensities of 17."""
  return float(np.abs(images - truth).mean())


def peak_signal_to_noise(images: np.ndarray, truth: np.ndarray) -> float | None:
  """PSNR in dB, 10 log10(16^2 / mean squared error over all pixels); None for equal images."""
  squared = float(np.square(images - truth).mean())
  return 10 * float(np.log10(BRIGHTEST**2 / squared)) if squared else None
