# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import HistoryModel, ScriptedDrafter, TableModel, TableTree, random_table

import specjax
from specjax import decoding
from specjax.drafters import DraftModel, Empty, Fallback, PromptLookup
from specjax.sampling import SamplingPolicy
from specjax.types import Draft
from specjax.verifiers import GreedyMatch, RejectionSampling, TargetMatch

V = 11
MODEL = HistoryModel(V)
PARAMS = MODEL.init(0)
PROMPTS = [[3], [1, 2, 3, 1, 2], [5] * 9, [*range(11), 4, 4, 0, 1, 2, 9]]


@dataclasses.dataclass(frozen=True)
class RandomDrafter(ScriptedDrafter):
  """Tokens that have nothing to do with the target."""

  def draft(self, params, state, context):
    script = jax.random.randint(jax.random.key(5), (self.draft_length,), 0, context.vocab_size)
    tokens = (script[None, :] + context.length[:, None] * 7) % context.vocab_size
    return Draft.chain(tokens, jnp.ones_like(tokens, bool)), state


def drafters():
  """Every kind of drafter on the toy target: name -> (drafter, params)."""
  draft_model = HistoryModel(V, hidden_size=5)
  draft_params = draft_model.init(1)
  return {
    "empty": (Empty(), None),
    "padded empty": (Empty(4), None),
    "prompt lookup": (PromptLookup(4), None),
    "prompt lookup, first": (PromptLookup(4, occurrence="first", wrap=False), None),
    "draft model": (DraftModel(draft_model, 3), draft_params),
    "the target as draft model": (DraftModel(MODEL, 4), PARAMS),
    "fallback": (Fallback(PromptLookup(5), DraftModel(MODEL, 3)), (None, PARAMS)),
    "random": (RandomDrafter(4), None),
    "tree of random siblings": (
      TableTree((-1, -1, -1, 0, 0, 1), "top"),
      {"table": random_table(3, V)},
    ),
  }


def generate(prompts=PROMPTS, **options):
  """Decodes on the toy target; one capacity for all tests, so that they share programs."""
  options = {"capacity": 96, **options}
  return specjax.generate(MODEL, PARAMS, prompts, **options)


def new_tokens(prompts=PROMPTS, **options):
  return generate(prompts, **options).new_tokens()


# --- greedy output ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", drafters())
def test_greedy_output_is_the_cacheless_reference_for_every_drafter(name):
  drafter, params = drafters()[name]
  generation = generate(drafter=drafter, drafter_params=params, max_new_tokens=20)
  for prompt, tokens in zip(PROMPTS, generation.new_tokens(), strict=True):
    assert tokens == MODEL.reference_greedy(PARAMS, prompt, 20)


@pytest.mark.parametrize("name", drafters())
def test_every_row_of_a_batch_is_that_prompt_alone(name):
  drafter, params = drafters()[name]
  keys = jax.random.split(jax.random.key(2), len(PROMPTS))
  policy = SamplingPolicy(temperature=[0.0, 1.0, 0.7, 0.0])
  options = {"drafter": drafter, "drafter_params": params, "max_new_tokens": 12}
  together = new_tokens(policy=policy, row_keys=keys, **options)
  for row, prompt in enumerate(PROMPTS):
    alone = new_tokens(
      [prompt],
      policy=SamplingPolicy(temperature=policy.temperature[row]),
      row_keys=keys[row : row + 1],
      **options,
    )
    assert alone == [together[row]]


def test_output_is_bit_equal_to_the_padded_empty_drafter():
  options = {"max_new_tokens": 24, "narrow": False}
  plain = generate(drafter=Empty(4), **options)
  lookup = generate(drafter=PromptLookup(4), **options)
  assert lookup.new_tokens() == plain.new_tokens()
  for ours, theirs in zip(lookup.new_log_probs(), plain.new_log_probs(), strict=True):
    assert ours == theirs


@pytest.mark.parametrize("verifier", [GreedyMatch(), RejectionSampling(), TargetMatch()])
def test_every_verifier_gives_the_same_greedy_output(verifier):
  drafter, params = drafters()["tree of random siblings"]
  options = {"drafter": drafter, "drafter_params": params, "max_new_tokens": 15}
  assert new_tokens(verifier=verifier, **options) == new_tokens(max_new_tokens=15)


def test_forced_ragged_acceptance_keeps_positions_and_cache_right():
  script = [prompt + MODEL.reference_greedy(PARAMS, prompt, 40) for prompt in PROMPTS]
  padded = np.zeros((4, 64), np.int32)
  for row, tokens in enumerate(script):
    padded[row, : len(tokens)] = tokens
  drafter = ScriptedDrafter(4, accept=(0, 1, 3, 4))
  generation = generate(drafter=drafter, drafter_params=jnp.asarray(padded), max_new_tokens=40)
  for row, prompt in enumerate(PROMPTS):
    assert generation.new_tokens()[row] == script[row][len(prompt) :]
  # 40 tokens by rounds of 1, 2, 4 and 5: three cycles of 12, then 1, 2 and the last 1.
  np.testing.assert_array_equal(generation.target_calls, [15] * 4)


# --- a perfect draft model -------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_equal_to_the_target_has_every_token_accepted(temperature):
  generation = generate(
    drafter=DraftModel(MODEL, 4),
    drafter_params=PARAMS,
    policy=SamplingPolicy(temperature=temperature),
    max_new_tokens=50,
  )
  np.testing.assert_array_equal(generation.target_calls, [10] * 4)
  np.testing.assert_array_equal(generation.acceptance_rate, [1.0] * 4)
  # At every position of the draft, not on average.
  np.testing.assert_array_equal(generation.accepted_by_depth, [[10] * 4] * 4)


def test_draft_model_reads_what_another_drafter_proposed():
  """After copied stretches the draft model has a gap to fill; unfilled, acceptance falls."""
  drafter = Fallback(PromptLookup(6, min_ngram=3), DraftModel(MODEL, 4))
  generation = generate(drafter=drafter, drafter_params=(None, PARAMS), max_new_tokens=60)
  for row, prompt in enumerate(PROMPTS):
    assert generation.new_tokens()[row] == MODEL.reference_greedy(PARAMS, prompt, 60)


# --- where rows end ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", drafters())
@pytest.mark.parametrize("max_new_tokens", [0, 1, 2, 4, 5, 6])
def test_the_budget_is_never_overshot(name, max_new_tokens):
  drafter, params = drafters()[name]
  generation = generate(
    drafter=drafter,
    drafter_params=params,
    max_new_tokens=max_new_tokens,
  )
  for prompt, tokens in zip(PROMPTS, generation.new_tokens(), strict=True):
    assert tokens == MODEL.reference_greedy(PARAMS, prompt, max_new_tokens)
  assert generation.finish_reasons == ["length"] * 4


def test_rows_have_budgets_of_their_own():
  generation = generate(
    drafter=DraftModel(MODEL, 4),
    drafter_params=PARAMS,
    max_new_tokens=[0, 3, 17, 8],
  )
  assert [len(row) for row in generation.new_tokens()] == [0, 3, 17, 8]


@pytest.mark.parametrize("name", drafters())
def test_an_eos_inside_an_accepted_block_ends_the_row_there(name):
  drafter, params = drafters()[name]
  reference = [MODEL.reference_greedy(PARAMS, prompt, 20) for prompt in PROMPTS]
  eos = reference[0][5]
  generation = generate(
    drafter=drafter,
    drafter_params=params,
    max_new_tokens=20,
    eos_ids=[eos, 10],
  )
  for row, expected in enumerate(reference):
    ends = [index for index, token in enumerate(expected) if token in (eos, 10)]
    kept = expected[: ends[0] + 1] if ends else expected
    assert generation.new_tokens()[row] == kept
    assert generation.finish_reasons[row] == ("eos" if ends else "length")
    assert len(generation.new_log_probs()[row]) == len(kept)
    assert not np.asarray(generation.tokens)[row, len(PROMPTS[row]) + len(kept) :].any()


def test_a_perfect_draft_past_eos_keeps_the_eos_and_nothing_after_it():
  """The target emits [a, EOS, b, c] and the draft knows it all: the output is [a, EOS]."""
  model, table = TableModel(5), jnp.full((5, 5), -9.0)
  table = table.at[jnp.array([0, 1, 2, 3]), jnp.array([1, 2, 3, 4])].set(9.0)
  generation = specjax.generate(
    model,
    {"table": table},
    [[0]],
    drafter=DraftModel(model, 4),
    drafter_params={"table": table},
    eos_ids=[2],
    max_new_tokens=9,
  )
  assert generation.new_tokens() == [[1, 2]]
  assert generation.finish_reasons == ["eos"]
  assert int(generation.target_calls[0]) == 1
  np.testing.assert_array_equal(generation.accepted_histogram, [[0, 0, 1, 0, 0]])


def test_a_finished_row_no_longer_changes():
  session = specjax.open_session(MODEL, PARAMS, PROMPTS[:2], max_new_tokens=[2, 30])
  session.advance(3)
  before = session.generation()
  session.advance()
  after = session.generation()
  assert after.new_tokens()[0] == before.new_tokens()[0]
  np.testing.assert_array_equal(before.target_calls, [2, 3])
  np.testing.assert_array_equal(after.target_calls, [2, 30])
  for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
    np.testing.assert_array_equal(np.asarray(old)[0], np.asarray(new)[0])


def test_a_row_stopped_by_the_host_is_cut_with_all_its_statistics():
  options = {"drafter": DraftModel(MODEL, 4), "drafter_params": PARAMS, "max_new_tokens": 30}
  session = specjax.open_session(MODEL, PARAMS, PROMPTS, **options)
  session.advance(3)
  session.stop({1: len(PROMPTS[1]) + 7})
  session.advance()
  generation = session.generation()
  reference = MODEL.reference_greedy(PARAMS, PROMPTS[1], 30)
  assert generation.new_tokens()[1] == reference[:7]
  assert len(generation.new_log_probs()[1]) == 7
  assert generation.finish_reasons == ["length", "stop", "length", "length"]
  np.testing.assert_array_equal(generation.target_calls, [6, 2, 6, 6])
  np.testing.assert_array_equal(generation.accepted_histogram[1], [0, 0, 1, 0, 1])


# --- statistics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", drafters())
def test_statistics_add_up(name):
  drafter, params = drafters()[name]
  generation = generate(drafter=drafter, drafter_params=params, max_new_tokens=30)
  histogram = np.asarray(generation.accepted_histogram)
  np.testing.assert_array_equal(histogram.sum(1), generation.target_calls)
  accepted = (histogram * np.arange(histogram.shape[1])).sum(1)
  np.testing.assert_array_equal(accepted, generation.accepted_tokens)
  np.testing.assert_array_equal(
    accepted + np.asarray(generation.target_calls), generation.num_new_tokens
  )
  np.testing.assert_array_equal(np.asarray(generation.accepted_by_depth).sum(1), accepted)
  assert (np.asarray(generation.draft_calls) <= np.asarray(generation.target_calls)).all()
  if name in ("empty", "padded empty"):
    assert not np.asarray(generation.draft_calls).any()
    np.testing.assert_array_equal(generation.block_efficiency, [1.0] * 4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", drafters())
def test_log_probs_are_the_targets_teacher_forced_ones(name, temperature):
  drafter, params = drafters()[name]
  generation = generate(
    drafter=drafter,
    drafter_params=params,
    max_new_tokens=10,
    policy=SamplingPolicy(temperature=temperature),
    key=3,
  )
  for row, prompt in enumerate(PROMPTS):
    sequence = list(prompt)
    for token, log_prob in zip(
      generation.new_tokens()[row], generation.new_log_probs()[row], strict=True
    ):
      logits = MODEL.reference_logits(PARAMS, sequence)
      expected = logits[token] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
      assert abs(log_prob - expected) < 2e-5
      sequence.append(token)


# --- slices, jit, compilation ----------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 3])
def test_streamed_tokens_are_the_generated_ones(rounds):
  options = {
    "drafter": PromptLookup(4),
    "max_new_tokens": 25,
    "policy": SamplingPolicy(temperature=0.8),
    "key": 4,
  }
  streamed = [[] for _ in PROMPTS]
  for slice_ in specjax.stream(MODEL, PARAMS, PROMPTS, rounds_per_slice=rounds, **options):
    for row, tokens in zip(streamed, slice_, strict=True):
      row.extend(tokens)
  assert streamed == new_tokens(**options)


def test_generate_works_under_the_users_own_jit():
  @jax.jit
  def run(params, prompts, lengths, seed):
    generation = specjax.generate(
      MODEL,
      params,
      prompts,
      prompt_lengths=lengths,
      drafter=PromptLookup(4),
      policy=SamplingPolicy(temperature=0.5),
      max_new_tokens=10,
      capacity=48,
      key=jax.random.key(seed),
    )
    return generation, generation.block_efficiency

  padded = np.zeros((4, 17), np.int32)
  for row, prompt in enumerate(PROMPTS):
    padded[row, : len(prompt)] = prompt
  lengths = np.array([len(prompt) for prompt in PROMPTS], np.int32)
  generation, efficiency = run(PARAMS, padded, lengths, 6)
  outside = generate(
    drafter=PromptLookup(4),
    policy=SamplingPolicy(temperature=0.5),
    max_new_tokens=10,
    capacity=48,
    key=6,
  )
  assert generation.new_tokens() == outside.new_tokens()
  np.testing.assert_allclose(efficiency, outside.block_efficiency)


def test_nothing_compiles_after_warm_up_within_a_bucket():
  drafter = PromptLookup(3)

  def run(prompts, **options):
    specjax.generate(MODEL, PARAMS, prompts, drafter=drafter, **options).new_tokens()

  first = SamplingPolicy(temperature=0.7, top_p=0.9)
  run([[1, 2], [3] * 9], max_new_tokens=20, policy=first, key=0, eos_ids=[1])
  compilations = []
  jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compilations.append(event) if "backend_compile" in event else None
  )
  try:
    for seed, (prompts, new, temperature, top_p) in enumerate(
      [
        ([[4], [2] * 16], 5, 1.3, 0.4),
        ([[5] * 7, [1] * 3], 33, [0.0, 1.0], [0.2, 0.8]),
        ([[5] * 12, [1] * 3], [0, 40], 0.1, 0.99),
      ]
    ):
      policy = SamplingPolicy(temperature=temperature, top_p=top_p)
      run(prompts, max_new_tokens=new, policy=policy, key=seed, eos_ids=[seed, 3])
  finally:
    jax.monitoring.clear_event_listeners()
  assert compilations == []


def test_one_program_serves_every_prompt_length_of_a_bucket():
  model = HistoryModel(V, hidden_size=6)
  params = model.init(2)
  decode = jax.jit(decoding.decode, static_argnums=0)  # only to read the cache of the real one
  del decode
  before = decoding._decode._cache_size()
  for length in (1, 4, 9, 15, 16):
    specjax.generate(model, params, [[1] * length], max_new_tokens=4)
  assert decoding._decode._cache_size() == before + 1


def test_prompts_of_many_lengths_share_a_program_of_one_width():
  model = HistoryModel(V, hidden_size=7)
  params = model.init(2)

  def run(**options):
    """Tokens of prompts of several lengths, and how many programs were compiled for them."""
    before = decoding._start._cache_size(), decoding._decode._cache_size()
    options |= {"max_new_tokens": 4, "capacity": 64}
    tokens = [
      specjax.generate(model, params, [[1] * length], **options).new_tokens()
      for length in (1, 17, 33)
    ]
    after = decoding._start._cache_size(), decoding._decode._cache_size()
    return tokens, np.subtract(after, before).tolist()

  together, compiled = run(prompt_width=40)
  assert compiled == [1, 1]
  alone, compiled = run()
  assert compiled == [2, 0]
  assert together == alone


def test_a_prompt_wider_than_the_width_is_read_whole():
  assert new_tokens(max_new_tokens=4, prompt_width=1) == new_tokens(max_new_tokens=4)


def test_a_drafter_built_again_compiles_nothing_new():
  options = {"max_new_tokens": 4}
  new_tokens(drafter=PromptLookup(7), **options)
  before = decoding._decode._cache_size()
  for _ in range(3):
    new_tokens(drafter=PromptLookup(7), **options)
  assert decoding._decode._cache_size() == before


# --- randomness -----------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_tokens_and_rows_differ():
  prompts = [[1, 2, 3]] * 5
  policy = SamplingPolicy(temperature=2.0)
  options = {"policy": policy, "max_new_tokens": 12, "drafter": PromptLookup(3)}
  first, again, other = (new_tokens(prompts, key=key, **options) for key in (1, 1, 2))
  assert first == again != other
  assert len(set(map(tuple, first))) == 5


def test_target_match_output_does_not_depend_on_the_drafter():
  options = {
    "policy": SamplingPolicy(temperature=1.0),
    "verifier": TargetMatch(),
    "max_new_tokens": 25,
    "key": 9,
  }
  plain = new_tokens(**options)
  for name in ("draft model", "tree of random siblings"):
    drafter, params = drafters()[name]
    assert new_tokens(drafter=drafter, drafter_params=params, **options) == plain


def test_shuffled_rows_keep_their_own_settings():
  """Parameters follow their row: every field of a mixed batch, in two orders."""
  keys = jax.random.split(jax.random.key(8), 4)
  settings = {
    "temperature": [0.0, 1.0, 0.6, 2.0],
    "top_k": [0, 3, 0, 5],
    "top_p": [1.0, 0.9, 0.5, 1.0],
    "repetition_penalty": [1.3, 1.0, 1.1, 1.0],
  }
  order = [2, 0, 3, 1]
  options = {"drafter": PromptLookup(4), "max_new_tokens": 10}
  straight = new_tokens(policy=SamplingPolicy(**settings), row_keys=keys, **options)
  mixed = {name: [values[i] for i in order] for name, values in settings.items()}
  shuffled = new_tokens(
    [PROMPTS[i] for i in order],
    policy=SamplingPolicy(**mixed),
    row_keys=keys[np.array(order)],
    **options,
  )
  assert shuffled == [straight[i] for i in order]


def test_greedy_rows_are_constant_beside_sampled_rows():
  prompts, policy = [[2, 7]] * 4, SamplingPolicy(temperature=[0.0, 1.0, 0.3, 0.0])
  greedy = MODEL.reference_greedy(PARAMS, prompts[0], 6)
  options = {"drafter": PromptLookup(3), "max_new_tokens": 6, "policy": policy}
  sampled = set()
  for seed in range(100):
    rows = new_tokens(prompts, key=seed, **options)
    assert rows[0] == rows[3] == greedy
    sampled.add(tuple(rows[1]))
  assert len(sampled) > 1


# --- bad input ---------------------------------------------------------------------------------


BAD = {
  "no rows": ({"prompts": []}, "at least one row"),
  "empty prompt": ({"prompts": [[1], []]}, r"prompts\[1\] is empty"),
  "id too large": ({"prompts": [[1, 11]]}, r"prompts\[0\]\[1\] is 11, outside the vocabulary"),
  "negative id": ({"prompts": [[-1]]}, "outside the vocabulary"),
  "text": ({"prompts": ["abc"]}, "list of token ids"),
  "floats": ({"prompts": [[0.5]]}, "list of token ids"),
  "three axes": ({"prompts": np.zeros((1, 2, 3), np.int32)}, r"integers \[B, P\]"),
  "negative budget": ({"max_new_tokens": -1}, "max_new_tokens must be >= 0, got -1"),
  "float budget": ({"max_new_tokens": 1.5}, "max_new_tokens must be an integer"),
  "budgets of another batch": ({"max_new_tokens": [1, 2]}, "max_new_tokens"),
  "capacity": ({"capacity": 10}, "capacity must be at least 14 .* got 10"),
  "width": ({"prompt_width": 0}, "prompt_width must be an integer >= 1, got 0"),
  "eos": ({"eos_ids": [11]}, "eos_ids must be within 0 .. 10"),
  "temperature": ({"policy": SamplingPolicy(temperature=-1.0)}, "temperature"),
  "greedy verifier that would ignore the policy": (
    {"policy": SamplingPolicy(temperature=1.0), "verifier": GreedyMatch()},
    "GreedyMatch decodes greedily",
  ),
  "vocabularies": (
    {"drafter": DraftModel(HistoryModel(V + 2)), "drafter_params": HistoryModel(V + 2).init()},
    "vocabulary has 13 tokens, the target's 11",
  ),
  "row keys": ({"row_keys": jax.random.split(jax.random.key(0), 3)}, "row_keys"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name(case):
  options, message = BAD[case]
  options = {"prompts": [[1, 2, 3]], "max_new_tokens": 10, **options}
  prompts = options.pop("prompts")
  with pytest.raises(ValueError, match=message):
    specjax.generate(MODEL, PARAMS, prompts, **options)


@pytest.mark.parametrize("make", [lambda: PromptLookup(0), lambda: DraftModel(MODEL, 0)])
def test_a_draft_length_below_one_is_refused(make):
  with pytest.raises(ValueError, match="draft_length must be an integer >= 1, got 0"):
    make()


def test_a_prompt_longer_than_the_model_reads_is_refused_before_anything_compiles():
  model = HistoryModel(V, max_positions=16)
  with pytest.raises(ValueError, match="need 18 positions, the model takes 16"):
    specjax.generate(model, model.init(), [[1] * 8], max_new_tokens=10)


def test_exact_capacity_works_and_one_slot_less_names_both_numbers():
  drafter, prompt = PromptLookup(4), PROMPTS[1]
  needed = len(prompt) + 12 + 4 + 1
  options = {"drafter": drafter, "max_new_tokens": 12}
  tokens = new_tokens([prompt], capacity=needed, **options)
  assert tokens == [MODEL.reference_greedy(PARAMS, prompt, 12)]
  with pytest.raises(ValueError, match=f"at least {needed} .* got {needed - 1}"):
    new_tokens([prompt], capacity=needed - 1, **options)


def test_a_draft_model_shorter_than_the_target_falls_silent_past_its_end():
  short = HistoryModel(V, max_positions=16)
  generation = specjax.generate(
    MODEL,
    PARAMS,
    [PROMPTS[1]],
    drafter=DraftModel(short, 4),
    drafter_params=PARAMS,
    max_new_tokens=40,
  )
  assert generation.new_tokens() == [MODEL.reference_greedy(PARAMS, PROMPTS[1], 40)]
  drafted = np.asarray(generation.records.proposed)[0]
  assert drafted[: 16 - 4].any() and not drafted[16:].any()


@pytest.mark.parametrize("difference", [-3, 3])
def test_padded_vocabularies_are_accepted_on_request_and_never_leak(difference):
  draft_model = HistoryModel(V + difference, hidden_size=5)
  generation = generate(
    drafter=DraftModel(draft_model, 3, pad_vocabulary=True),
    drafter_params=draft_model.init(4),
    policy=SamplingPolicy(temperature=2.0),
    max_new_tokens=20,
    key=1,
  )
  assert all(0 <= token < V for row in generation.new_tokens() for token in row)


@pytest.mark.parametrize("mesh", [None, "data:4,model:2"])
@pytest.mark.parametrize("name", drafters())
def test_slices_move_nothing_to_the_device_unasked(name, mesh):
  drafter, drafter_params = drafters()[name]
  session = decoding.open_session(
    MODEL, PARAMS, PROMPTS, drafter=drafter, drafter_params=drafter_params, max_new_tokens=9,
    mesh=mesh,
  )  # fmt: skip
  with jax.transfer_guard("disallow"):
    while session.advance(2):
      pass
    generation = session.generation()
  assert [len(row) for row in generation.new_tokens()] == [9] * len(PROMPTS)
