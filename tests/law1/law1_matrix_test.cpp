// Law 1 as one matrix: training gives the same bits wherever memory is, however it is moved, and
// whether or not the run was interrupted. Each row below names one axis. expect_row (same_bits.hpp)
// trains the row's reference once and every case against it.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/law1/same_bits.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::train {
namespace {

using namespace testing;

class SameBits : public ::testing::TestWithParam<Row> {};
TEST_P(SameBits, AsTheReference) {
  expect_row(GetParam());
}

const auto kNameOfRow = [](const auto& row) { return row.param.name; };

const Overrides kMatrixGpt2 = small_gpt2(3, 20) + kLearning;
const Overrides kMatrixLlama = kMatrixGpt2 + kLlama + Overrides{"model.layers=2"};

// --- where memory is, and how it moves

std::vector<Row> placements() {
  return {{"Tiers",
           kMatrixGpt2,
           kResident,
           {{"pinned", kPinned},
            {"io_uring", kPinnedState + Overrides{"memory.storage_engine=io_uring"}},
            {"sqpoll", kPinnedState + Overrides{"memory.storage_sqpoll=true"}},
            {"posix", kPinnedState + Overrides{"memory.storage_engine=posix"}},
            {"stored", kStored},
            {"uneven", kUneven},
            {"device_weights", kSpread}}},
          {"Movement",
           kMatrixGpt2,
           kResident,
           {{"recompute", kPinned + kRecompute},
            {"recompute_device", kResident + kRecompute},
            {"chunk", kPinned + kSmallChunks},
            {"chunk_stored", kStored + kSmallChunks + kRecompute},
            {"ahead", kPinnedState + Overrides{"memory.chunk=6MiB", "memory.prefetch=3"}},
            {"two_threads", kStored + Overrides{"train.threads=2"}},
            {"one_thread", kPinned + Overrides{"train.threads=1"}}}},
          // A budget that leaves no choice but to spread the optimizer's state over two tiers.
          {"TightBudgets",
           kMatrixGpt2,
           {},
           {{"tight", Overrides{"memory.device=10MiB", "memory.pinned=3MiB",
                                "memory.place.weight=pinned", "memory.place.gradient=pinned"}}},
           StopBy::kStep,
           {},
           [](const Case&, const TrainingRecord& run) {
             const RunEvent& optimizer = run.plan.at("units_by_tier").at("optimizer");
             EXPECT_TRUE(optimizer.contains("pinned") && optimizer.contains("storage"))
                 << optimizer;
           }}};
}
INSTANTIATE_TEST_SUITE_P(Placement, SameBits, ::testing::ValuesIn(placements()), kNameOfRow);

// --- models and precisions

std::vector<Row> models() {
  const Overrides fp32{"train.precision=fp32"};
  const Overrides single{"train.accumulate=1"};
  const Overrides evaluated{"train.eval_every=5"};
  return {
      {"GroupedQueryLlama",
       kMatrixLlama,
       kResident,
       {{"pinned", kPinned},
        {"stored", kStored + kRecompute},
        {"mixed", kPinnedState + kNoPrefetch}}},
      {"Fp32", kMatrixGpt2 + fp32, kResident, {{"pinned", kPinned}, {"stored", kStored}}},
      {"Fp32TiedLlama",
       kMatrixLlama + fp32 + Overrides{"model.tie_embeddings=true"},
       kResident,
       {{"mixed", kPinnedState + kRecompute}}},
      {"OneMicrobatch",
       kMatrixGpt2 + single,
       kResident,
       {{"pinned", kPinned}, {"stored", kStored}}},
      {"OneMicrobatchLlama", kMatrixLlama + single, kResident, {{"mixed", kPinnedState}}},
      // Evaluation between steps changes nothing, and its losses do not depend on where memory is.
      {"EvaluationChangesNothing",
       kMatrixGpt2,
       {},
       {{"device", evaluated}, {"stored", evaluated + kStored}}},
      {"Evaluation", kMatrixGpt2 + evaluated, {}, {{"stored", kStored}}},
      // The seed decides alone.
      {"TheSameRunAgain", kMatrixGpt2, {}, {{"again", Overrides{}}}}};
}
INSTANTIATE_TEST_SUITE_P(Model, SameBits, ::testing::ValuesIn(models()), kNameOfRow);

// --- the order of passes, and where the update is

Row order_row(const std::string& name, const Overrides& model) {
  return {name,
          // The reference updates after the backward pass, one micro-batch after another.
          model + kAfterBackward + Overrides{"train.order=microbatch"},
          kResident,
          {{"unit", kStored + kUnitOrder},
           {"unit_recompute", kPinned + kUnitOrder + kRecompute},
           {"unit_device", kResident + kUnitOrder},
           {"next", kPinnedState + kNextForward},
           {"next_stored", kStored + kNextForward + kNoPrefetch},
           {"next_no_ring", kStored + kNextForward + Overrides{"memory.update_ring=0"}},
           {"next_device", kResident + kNextForward},
           {"both", kStored + kNextForward + kUnitOrder + Overrides{"memory.chunk=4MiB"}},
           {"uneven", kUneven + kNextForward + kUnitOrder},
           {"saving",
            kPinnedState + kNextForward + Overrides{"checkpoint.every=3", "train.eval_every=4"}}}};
}

Row in_backward_row(const std::string& name, const Overrides& model) {
  return {name,
          model + kAfterBackward + Overrides{"train.clip=0"},
          kResident,
          {{"pinned", kPinned + kInBackward},
           {"stored", kStored + kInBackward + kUnitOrder},
           {"mixed", kPinnedState + kInBackward},
           {"device", kResident + kInBackward},
           {"carried", kPinned + kInBackward + carried(2)},
           {"carried_stored", kStored + kInBackward + kUnitOrder + carried(3)},
           {"carried_saving", kSpread + kInBackward + carried(1) +
                                  Overrides{"checkpoint.every=3", "train.eval_every=4"}}}};
}

INSTANTIATE_TEST_SUITE_P(
    Order, SameBits,
    ::testing::Values(order_row("Gpt2", kMatrixGpt2),
                      order_row("Llama", kMatrixLlama + Overrides{"train.accumulate=4"}),
                      in_backward_row("InBackwardGpt2", kMatrixGpt2),
                      in_backward_row("InBackwardLlama", kMatrixLlama),
                      in_backward_row("InBackwardOneMicrobatch",
                                      kMatrixGpt2 + Overrides{"train.accumulate=1"})),
    kNameOfRow);

// --- every optimizer, and every way of keeping its state

const Overrides kShort = small_gpt2(2, 12) + kChosenByHand;

Row optimizer_row(const std::string& name, const Overrides& optimizer) {
  return {name,
          kShort + optimizer + kAfterBackward,
          kResident,
          {{"pinned", kPinned},
           {"stored", kStored},
           {"mixed", kSpread + Overrides{"train.threads=1"}},
           {"next_device", kResident + kNextForward},
           {"next_stored", kStored + kNextForward},
           {"next_mixed", kSpread + kNextForward + kUnitOrder},
           {"speculative_pinned", places("storage", "pinned", "pinned") + kSpeculative},
           {"speculative_device", kResident + kSpeculative}},
          StopBy::kStep,
          [](const TrainingRecord& run) { EXPECT_LT(run.loss(11), run.loss(0) - 0.2); }};
}

Row optimizer_resume_row(const std::string& name, const Overrides& optimizer) {
  return {"Resume_" + name,
          kShort + optimizer,
          {},
          {{"parts",
            std::vector<Part>{{kPinnedState + Overrides{"optimizer.placement=next_forward"}, 5},
                              {kResident}}}}};
}

std::vector<Row> optimizers() {
  const auto lr = [](const char* value) { return Overrides{std::string("optimizer.lr=") + value}; };
  const auto rule = [](const char* value) {
    return Overrides{std::string("optimizer.name=") + value};
  };
  const Overrides split{"optimizer.states=split"};
  const Overrides bf16{"optimizer.moments=bf16"};
  const Overrides block8{"optimizer.moments=8bit"};
  const Overrides fp16{"train.precision=fp16"};
  const Overrides fp32{"train.precision=fp32"};
  const Overrides groups{
      "optimizer.groups=[{match=\"*.bias\",lr_scale=0.5},{match=\"embedding.*\",weight_decay=0.0}"
      "]"};
  const std::vector<std::pair<std::string, Overrides>> all{
      {"adamw_split", split + lr("0.005") + groups},
      {"adamw_split_bf16", split + bf16 + lr("0.005")},
      {"adamw_split_8bit", split + block8 + lr("0.005")},
      {"adamw_8bit", block8 + lr("0.005")},
      {"adamw_fp16_8bit", fp16 + block8 + lr("0.005")},
      {"muon_fp16_bf16", fp16 + rule("muon") + bf16 + lr("0.01")},
      {"adafactor_fp16", fp16 + rule("adafactor") + lr("0.02")},
      {"sm3_split_8bit", rule("sm3") + split + block8 + lr("0.1")},
      {"adamw_fp32_8bit", fp32 + block8 + lr("0.005")},
      {"adam", rule("adam") + lr("0.005")},
      {"sgd", rule("sgd") + lr("0.1") + Overrides{"optimizer.nesterov=true"}},
      {"sgd_plain_split", rule("sgd") + lr("0.1") + split + Overrides{"optimizer.momentum=0"}},
      {"lion_split_bf16", rule("lion") + lr("0.001") + split + bf16},
      {"adafactor", rule("adafactor") + lr("0.02")},
      {"adafactor_split", rule("adafactor") + lr("0.02") + split},
      {"sm3", rule("sm3") + lr("0.1")},
      {"muon", rule("muon") + lr("0.01")},
      {"muon_fp32", rule("muon") + lr("0.01") + fp32},
      // Llama's stored tensors hold several matrices each.
      {"adafactor_llama", Overrides{"model.family=llama"} + rule("adafactor") + lr("0.02")},
      {"sm3_llama_bf16", Overrides{"model.family=llama"} + rule("sm3") + lr("0.1") + bf16},
      {"muon_llama", Overrides{"model.family=llama"} + rule("muon") + lr("0.01")}};
  std::vector<Row> rows;
  for (const auto& [name, overrides] : sampled(all)) {
    rows.push_back(optimizer_row(name, overrides));
    rows.push_back(optimizer_resume_row(name, overrides));
  }
  // A split master holds the bits of an fp32 master.
  rows.push_back({"SplitMaster", kShort + kPinned, {}, {{"split", split}}});
  return rows;
}
INSTANTIATE_TEST_SUITE_P(Optimizer, SameBits, ::testing::ValuesIn(optimizers()), kNameOfRow);

// --- durable runs: state kept and committed on storage

const Overrides kCommitted = kShort + kLearning;
const std::vector<Overrides> kPlaces{kResident, kPinned, kPinnedState,
                                     places("storage", "pinned", "pinned"), kStored};

Row every_commit_row() {
  Row row{"EveryPlaceAndInterval", kCommitted, {}, {}};
  for (std::size_t at = 0; at < kPlaces.size(); ++at) {
    for (const int every : {0, 1, 2, 5, 12}) {
      row.cases.emplace_back("place" + std::to_string(at) + "_every" + std::to_string(every),
                             kPlaces[at] + durable(every));
    }
  }
  return row;
}

Row durable_optimizer_row(const std::string& name, const Overrides& optimizer) {
  Row row{name, kCommitted + optimizer, {}, {}};
  for (const std::size_t at : {1u, 2u, 4u}) {
    row.cases.emplace_back("place" + std::to_string(at), kPlaces[at] + durable(3));
  }
  return row;
}

// A commit finds no update pending, and no step has written new state before it.
Row durable_update_row(const std::string& name, const Overrides& model,
                       const std::vector<Overrides>& updates) {
  Row row{name, kCommitted + model, {}, {}};
  for (std::size_t i = 0; i < updates.size(); ++i) {
    for (const std::size_t at : {1u, 2u, 4u}) {
      const Overrides run = updates[i] + kPlaces[at] + durable(2);
      row.cases.emplace_back("update" + std::to_string(i) + "_place" + std::to_string(at),
                             std::vector<Part>{{run, 5}, {run}});
    }
  }
  return row;
}

std::vector<Row> durable_runs() {
  const Overrides scratch{"checkpoint.mode=scratch"};
  return {
      every_commit_row(),
      durable_optimizer_row("SplitBlock8", {"optimizer.states=split", "optimizer.moments=8bit"}),
      durable_optimizer_row("Adafactor", {"optimizer.name=adafactor"}),
      durable_optimizer_row("Muon", {"optimizer.name=muon"}),
      durable_optimizer_row("Fp32", {"train.precision=fp32", "train.accumulate=1",
                                     "recompute.policy=unit", "memory.chunk=4MiB"}),
      durable_update_row("Updates", {},
                         {kNextForward, kNextForward + kUnitOrder, kAfterBackward + kUnitOrder}),
      durable_update_row("UpdatesInBackward", {"train.clip=0"},
                         {kInBackward, kInBackward + kUnitOrder}),
      // Goes from durable to scratch and back, with memory in other places.
      {"OtherPlaces",
       kCommitted,
       {},
       {{"down",
         std::vector<Part>{
             {kStored + durable(2), 5}, {kPinnedState + durable(3), 9}, {kResident + durable(1)}}},
        {"up_and_down",
         std::vector<Part>{
             {kResident + durable(0), 5}, {kStored + durable(1), 9}, {kPinned + durable(0)}}},
        {"scratch_between",
         std::vector<Part>{
             {kPinnedState + durable(3), 5}, {kStored + scratch, 9}, {kStored + durable(2)}}},
        {"durable_between",
         std::vector<Part>{
             {kStored + scratch, 5}, {kPlaces[3] + durable(2), 9}, {kStored + scratch}}}},
       StopBy::kSignal},
      {"Fp16WithItsLossScale",
       kCommitted + Overrides{"train.precision=fp16", "train.loss_scale=4294967296",
                              "train.loss_scale_window=2"},
       {},
       {{"parts", std::vector<Part>{{kStored + durable(1), 5}, {kStored + durable(1)}}}}}};
}
INSTANTIATE_TEST_SUITE_P(Durable, SameBits, ::testing::ValuesIn(sampled(durable_runs())),
                         kNameOfRow);

// --- interrupted and resumed

std::vector<Row> resumed() {
  const auto twice = [](const Overrides& before, const Overrides& then) {
    return std::vector<Part>{{before, 7}, {then}};
  };
  const std::vector<Part> thrice{{kPinnedState, 9}, {kPinnedState, 14}, {kPinnedState}};
  return {
      {"AfterASignal",
       kMatrixGpt2,
       {},
       {{"pinned", twice(kPinned, kPinned)},
        {"stored", twice(kStored, kStored)},
        {"to_device", twice(kStored, kResident)},
        {"to_mixed", twice(kPinned, kPinnedState + Overrides{"memory.chunk=4MiB"} + kRecompute)},
        {"next", twice(kPinnedState + kNextForward, kStored + kNextForward + kUnitOrder)},
        {"next_to_after", twice(kPinned + kNextForward, kPinned + kAfterBackward)}},
       StopBy::kSignal},
      {"AfterAStep", kMatrixGpt2, {}, {{"parts", thrice}}},
      {"AfterAStepFp32Llama",
       kMatrixLlama + Overrides{"train.precision=fp32"},
       {},
       {{"parts", thrice}}}};
}
INSTANTIATE_TEST_SUITE_P(Resume, SameBits, ::testing::ValuesIn(resumed()), kNameOfRow);

// --- values that are recomputed in the backward pass

const std::vector<std::string> kPolicies{"unit", "selective", "attention", "every:2", "sqrt"};
const Overrides kRecomputed = small_gpt2(5, 6) + kLearning;

Overrides recompute(const std::string& policy) {
  return {"recompute.policy=" + policy};
}

// Parts that are recomputed do not wait between the passes. The name of a case begins with that of
// its policy. The last segment is kept: one unit of five, or two.
void expect_remade(const Case& one, const TrainingRecord& run) {
  const auto policy = run.plan.at("recompute").get<std::string>();
  const bool sqrt = one.name.starts_with("sqrt");
  EXPECT_EQ(sqrt ? "every:3" : one.name.substr(0, one.name.find('_')), policy);
  const RunEvent& recomputed = run.plan.at("recomputed");
  EXPECT_EQ(recomputed.at("of_units"), 5);
  EXPECT_EQ(recomputed.at("units"), sqrt ? 3 : policy == "every:2" ? 4 : 5);
  if (policy.starts_with("every")) return;
  const RunEvent& saved = run.plan.at("saved_by_tier");
  for (const char* part : {"normed1", "norm2_rstd", "mlp_hidden"}) {
    EXPECT_EQ(saved.contains(part), policy == "attention") << part;
  }
  for (const char* part : {"attention", "log_sum_exp"}) {
    EXPECT_EQ(saved.contains(part), policy == "selective") << part;
  }
  EXPECT_EQ(saved.contains("mlp_up"), policy != "unit");
}

// few: only with spilled activations, where each policy has the most to get wrong.
Row recompute_row(const std::string& name, const Overrides& model, bool few = false) {
  Row row{name, model + recompute("none"), kResident, {}, StopBy::kStep, {}, expect_remade};
  const Overrides spilled{"memory.place.activation=storage"};
  const Overrides next{"optimizer.placement=next_forward"};
  for (const std::string& policy : kPolicies) {
    row.cases.emplace_back(policy + "_spilled",
                           kPinnedState + spilled + kUnitOrder + recompute(policy));
    if (few) continue;
    row.cases.emplace_back(policy, kResident + recompute(policy));
    row.cases.emplace_back(policy + "_next", kStored + next + kNoPrefetch + recompute(policy));
  }
  return row;
}

std::vector<Row> recomputed() {
  const Overrides fp32{"train.precision=fp32"};
  const Overrides tied{"model.tie_embeddings=true"};
  const Overrides spilled{"memory.place.activation=pinned"};
  Row resumed{"AcrossACheckpoint", kRecomputed + recompute("none"), kResident, {}};
  for (const std::string& policy : kPolicies) {
    resumed.cases.emplace_back(policy, std::vector<Part>{{kPinned + spilled + recompute(policy), 2},
                                                         {kPinnedState + recompute("none"), 4},
                                                         {kStored + spilled + recompute(policy)}});
  }
  const Overrides llama =
      kRecomputed + Overrides{"model.family=llama", "model.kv_heads=2", "model.ffn=160"};
  return {recompute_row("Gpt2", kRecomputed), recompute_row("Llama", llama),
          recompute_row("Gpt2Fp32", kRecomputed + fp32, true),
          recompute_row("LlamaFp32", llama + fp32 + tied, true), resumed};
}
INSTANTIATE_TEST_SUITE_P(Recompute, SameBits, ::testing::ValuesIn(recomputed()), kNameOfRow);

// --- activations on other tiers

std::uint64_t moved(const TrainingRecord& run, const char* link) {
  return run.plan.at("activation_bytes_moved").at(link).get<std::uint64_t>();
}

// Storage moves the spilled bytes, where activations are there and nothing else is.
void expect_moves(const Case& one, const TrainingRecord& run) {
  const bool spilled = !one.name.ends_with("_device");
  const bool stored = one.name.ends_with("_storage");
  EXPECT_EQ(moved(run, "download") > 0, spilled);
  EXPECT_GE(moved(run, "upload"), moved(run, "download"));
  EXPECT_EQ(moved(run, "storage_write"), stored ? moved(run, "download") : 0);
  EXPECT_EQ(moved(run, "storage_read"), stored ? moved(run, "upload") : 0);
}
void expect_spill(const Case&, const TrainingRecord& run) {
  EXPECT_GT(moved(run, "download"), 0u);
}

Row every_tier_row() {
  Row row{"EveryTier", kSpillingLlama, activations("device") + kResident, {}, StopBy::kStep,
          {},          expect_moves};
  for (const std::string engine : {"io_uring", "posix"}) {
    for (const std::string order : {"microbatch", "unit"}) {
      for (const std::string recompute : {"none", "unit"}) {
        for (const std::string tier : {"device", "pinned", "storage"}) {
          row.cases.emplace_back(
              engine + "_" + order + "_" + recompute + "_" + tier,
              kPinned + activations(tier) +
                  Overrides{"memory.storage_engine=" + engine, "train.order=" + order,
                            "recompute.policy=" + recompute});
        }
      }
    }
  }
  return row;
}

Row spilled_update_row() {
  Row row{"DurableAndUpdates", kSpillingLlama, {}, {}, StopBy::kStep, {}, expect_spill};
  for (const std::string tier : {"pinned", "storage"}) {
    row.cases.emplace_back("durable_" + tier, activations(tier) + durable(2) + kPinnedState);
    row.cases.emplace_back("durable_next_" + tier,
                           activations(tier) + durable(2) + kNextForward + kPinnedState);
    row.cases.emplace_back("stored_" + tier, activations(tier) + durable(2) + kStored + kUnitOrder);
    row.cases.emplace_back("next_" + tier,
                           activations(tier) + kNextForward + kPinnedState + kNoPrefetch);
    row.cases.emplace_back("resident_" + tier, activations(tier) + kResident);
  }
  return row;
}

// Each part that a unit saves has a place of its own.
void expect_parts(const Case& one, const TrainingRecord& run) {
  expect_spill(one, run);
  const RunEvent& parts = run.plan.at("saved_by_tier");
  if (one.name == "one") {
    EXPECT_TRUE(parts.at("mlp_hidden").contains("storage"));
    EXPECT_FALSE(parts.at("qkv").contains("pinned"));
    EXPECT_EQ(parts.at("mlp_hidden").at("storage"), moved(run, "storage_write"));
  }
  if (one.name == "scattered") {
    EXPECT_TRUE(parts.at("qkv").contains("storage"));
    EXPECT_TRUE(parts.at("attention").contains("pinned"));
    EXPECT_FALSE(parts.at("residual").contains("pinned"));
  }
}

Row saved_parts_row() {
  const auto saved = [](const std::string& where) {
    return Overrides{"recompute.policy=none", "memory.place.saved={" + where + "}"};
  };
  const Overrides scattered =
      saved("qkv='storage',mlp_up='pinned',attention='pinned',normed2='storage','*'='device'");
  return {"SavedParts",
          kSpillingLlama,
          {},
          {{"one", saved("mlp_hidden='storage','*'='device'")},
           {"scattered", scattered + kPinnedState},
           {"unit_order", scattered + kUnitOrder},
           {"immediate", scattered + kNoPrefetch},
           {"beside_outputs", saved("qkv='device'") + activations("pinned")},
           {"durable", scattered + kPinnedState + durable(2)}},
          StopBy::kStep,
          {},
          expect_parts};
}

std::vector<Row> spilled() {
  const Overrides in_backward =
      activations("storage") + places("storage", "pinned", "storage") + kInBackward;
  const Overrides committed = places("storage", "pinned", "storage") + durable(1);
  return {every_tier_row(),
          spilled_update_row(),
          saved_parts_row(),
          // Updates in the backward pass go without clipping.
          {"UpdatesInBackward",
           kSpillingLlama + Overrides{"train.clip=0"},
           {},
           {{"microbatch", in_backward + Overrides{"train.order=microbatch"}},
            {"unit", in_backward + kUnitOrder}}},
          // Spilled activations are no part of a checkpoint: a run resumes with another placement.
          {"AcrossACheckpoint",
           kSpillingLlama,
           {},
           {{"run", std::vector<Part>{{committed + activations("storage"), 2},
                                      {committed + activations("device")}}}},
           StopBy::kStep,
           {},
           [](const Case&, const TrainingRecord& run) {
             const RunEvent& moved = run.plans.front().at("activation_bytes_moved");
             EXPECT_GT(moved.at("storage_write").get<std::uint64_t>(), 0u);
           }}};
}
INSTANTIATE_TEST_SUITE_P(Spill, SameBits, ::testing::ValuesIn(spilled()), kNameOfRow);

// --- what all of them do

TEST(Training, LowersTheLoss) {
  const TrainingBench bench;
  for (const Overrides& model : {kMatrixGpt2, kMatrixLlama}) {
    const TrainingRecord run = TrainingBench::run(
        bench.config(model == kMatrixGpt2 ? "gpt2" : "llama", model + Overrides{"train.steps=60"}));
    EXPECT_NEAR(run.loss(0), std::log(256.0), 0.3);
    EXPECT_LT(run.loss(59), 2.5);
  }
}

}  // namespace
}  // namespace sluice::train
