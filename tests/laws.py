# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Statistical oracles: does what a scheme emits have the law that enumeration gives?"""

import collections

import jax
import numpy as np
import scipy.stats

import specjax


def sample_law(model, params, prompt, num_tokens, *, samples, seed=0, **options):
  """How often each continuation came out in `samples` rows of one batch: a Counter."""
  prompts = np.broadcast_to(np.asarray(prompt, np.int32), (samples, len(prompt)))
  generation = specjax.generate(
    model,
    params,
    prompts,
    max_new_tokens=num_tokens,
    key=jax.random.key(seed),
    **options,
  )
  new = np.asarray(generation.tokens)[:, len(prompt) : len(prompt) + num_tokens]
  return collections.Counter(map(tuple, new.tolist()))


def chi_square_p_value(counts, law):
  """Goodness of fit of observed `counts` to `law` (a dict); cells under 5 are pooled.

  An outcome of probability 0 that occurred gives 0: it is a certain failure.
  """
  samples = sum(counts.values())
  if any(law[outcome] == 0 for outcome in counts):
    return 0.0
  observed, expected, pooled = [], [], [0.0, 0.0]
  for outcome, probability in law.items():
    if probability * samples >= 5:
      observed.append(counts[outcome])
      expected.append(probability * samples)
    else:
      pooled[0] += counts[outcome]
      pooled[1] += probability * samples
  if pooled[1] >= 5:
    observed.append(pooled[0])
    expected.append(pooled[1])
  expected = np.array(expected) * (sum(observed) / sum(expected))
  if len(observed) < 2:
    return 1.0
  return float(scipy.stats.chisquare(observed, expected).pvalue)
