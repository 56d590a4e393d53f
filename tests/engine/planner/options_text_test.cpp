// Step options travel between ranks as text: exactly, and no damaged text becomes options.
#include "engine/planner/choice/options_text.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "engine/schedule/compile/step_fields.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/step_examples.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::planner {
namespace {

using namespace testing;

schedule::StepOptions drawn_options(std::uint64_t seed) {
  const CounterRng random(seed, stream_of("test/options_text"));
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) { return random.below(draw++, bound); };
  schedule::StepModel model =
      example_model(static_cast<int>(below(6)), below(2) == 0, DType::kBF16);
  cut_saved(model);
  const auto groups = static_cast<std::int32_t>(1 + below(5));
  schedule::StepOptions options =
      random_options(model, groups * static_cast<std::int32_t>(1 + below(9)), seed);
  options.fold_groups = groups;
  options.sum = static_cast<schedule::GradientSum>(below(2));
  options.bucket_elems = 1 + below(1 << 20);
  options.node_ranks = static_cast<std::int32_t>(below(3));
  options.placement.partial.assign(below(2) * model.units.size(), Tier::kStorage);
  options.update = static_cast<schedule::UpdatePlacement>(below(4));
  options.carried_units = static_cast<std::int32_t>(below(7));
  options.weight_slots = below(3) == 0 ? below(std::uint64_t{1} << 40) : 0;
  options.durable = below(3) == 0;
  options.exchange_lag = static_cast<std::int32_t>(below(3));
  options.recompute_ahead = static_cast<std::int32_t>(below(5));
  options.turns = static_cast<std::int32_t>(1 + below(2));
  options.keeps_update_ring = below(2) == 0;
  if (below(2) == 0) scatter_saved(model, seed, options.placement);
  if (below(2) == 0) {
    const auto units = static_cast<std::int32_t>(model.units.size());
    const auto first = static_cast<std::int32_t>(1 + below(model.units.size() - 1));
    options.stages = {{0, first}, {first, units}};
  }
  return options;
}

TEST(OptionsText, RoundTripsExactly) {
  for (std::uint64_t seed = 0; seed < sweep(1000); ++seed) {
    const schedule::StepOptions options = drawn_options(seed);
    const std::string text = options_text(options);
    ASSERT_EQ(options_from_text(text), options) << seed << ": " << text;
    ASSERT_EQ(options_text(options_from_text(text)), text);
    ASSERT_EQ(text.find('\n'), std::string::npos);
  }
}

// So RoundTripsExactly fails for a field that has no text.
TEST(OptionsText, DrawsOtherValuesOfEveryField) {
  std::set<std::string> fields, drawn;
  const nlohmann::json usual = nlohmann::json::parse(options_text({}));
  for (std::uint64_t seed = 0; seed < sweep(100); ++seed) {
    const schedule::StepOptions options = drawn_options(seed);
    const nlohmann::json text = nlohmann::json::parse(options_text(options));
    schedule::for_each_field(options, [&](const schedule::StepField& field, const auto&) {
      fields.insert(field.name);
      if (text[field.name] != usual[field.name]) drawn.insert(field.name);
    });
  }
  EXPECT_EQ(drawn, fields);
}

// A change of one member changes the text of the field with its name, and no other.
TEST(OptionsText, FieldsHaveTheNamesOfTheirMembers) {
  const nlohmann::json usual = nlohmann::json::parse(options_text({}));
  std::set<std::string> fields;
  const auto expect_only = [&](const std::string& name, const auto& change) {
    fields.insert(name);
    schedule::StepOptions options;
    change(options);
    const nlohmann::json text = nlohmann::json::parse(options_text(options));
    ASSERT_EQ(text.size(), usual.size());
    for (const auto& [key, value] : text.items()) {
      EXPECT_EQ(value != usual[key], key == name) << key << " when " << name << " changes";
    }
  };
  using Options = schedule::StepOptions;
  const auto number = [&](const std::string& name, auto Options::*member) {
    expect_only(name, [member](Options& to) { ++(to.*member); });
  };
  const auto flag = [&](const std::string& name, bool Options::*member) {
    expect_only(name, [member](Options& to) { to.*member = !(to.*member); });
  };
  const auto list = [&](const std::string& name, auto schedule::Placement::*member) {
    expect_only(name, [member](Options& to) { (to.placement.*member).emplace_back(); });
  };
  number("microbatches", &Options::microbatches);
  number("fold_groups", &Options::fold_groups);
  number("bucket_elems", &Options::bucket_elems);
  number("node_ranks", &Options::node_ranks);
  number("chunk_bytes", &Options::chunk_bytes);
  number("piece_elems", &Options::piece_elems);
  number("prefetch", &Options::prefetch);
  number("weight_slots", &Options::weight_slots);
  number("stream_lookahead", &Options::stream_lookahead);
  number("update_piece_elems", &Options::update_piece_elems);
  number("update_lookahead", &Options::update_lookahead);
  number("carried_units", &Options::carried_units);
  number("exchange_lag", &Options::exchange_lag);
  number("recompute_ahead", &Options::recompute_ahead);
  number("turns", &Options::turns);
  flag("keeps_update_ring", &Options::keeps_update_ring);
  flag("shares_device", &Options::shares_device);
  flag("durable", &Options::durable);
  list("weight", &schedule::Placement::weight);
  list("gradient", &schedule::Placement::gradient);
  list("optimizer", &schedule::Placement::optimizer);
  list("activation", &schedule::Placement::activation);
  list("partial", &schedule::Placement::partial);
  list("saved", &schedule::Placement::saved);
  expect_only("sum", [](Options& to) { to.sum = static_cast<schedule::GradientSum>(1); });
  expect_only("order", [](Options& to) { to.order = schedule::ComputeOrder::kUnit; });
  expect_only("update", [](Options& to) { to.update = schedule::UpdatePlacement::kNextForward; });
  expect_only("recompute", [](Options& to) { to.recompute.units.emplace_back(); });
  expect_only("stages", [](Options& to) { to.stages.emplace_back(); });
  EXPECT_EQ(fields.size(), usual.size());
}

TEST(OptionsText, StagesCoverTheUnits) {
  nlohmann::json options = nlohmann::json::parse(options_text(drawn_options(1)));
  const auto units = options["weight"].get<std::string>().size();
  const auto refusal = [&](const nlohmann::json& stages) {
    options["stages"] = stages;
    return message_of<InputError>([&] { options_from_text(options.dump()); });
  };
  EXPECT_TRUE(holds(refusal({1, units - 1}), "must end at"));
  EXPECT_TRUE(holds(refusal({1, 1, units}), "must be a whole number from 2"));
  EXPECT_TRUE(holds(refusal({0, units}), "must be a whole number from 1"));
  EXPECT_TRUE(holds(refusal("all"), "must be a list"));
}

std::string refusal_of(const std::string& text) {
  return message_of<InputError>([&] { options_from_text(text); });
}

TEST(OptionsText, NamesTheKeyThatIsMissing) {
  const nlohmann::json whole = nlohmann::json::parse(options_text(drawn_options(1)));
  for (const auto& [key, value] : whole.items()) {
    nlohmann::json less = whole;
    less.erase(key);
    EXPECT_TRUE(holds(refusal_of(less.dump()), "\"" + key + "\" is missing")) << key;
  }
}

TEST(OptionsText, NamesTheKeyThatIsWrong) {
  const nlohmann::json whole = nlohmann::json::parse(options_text(drawn_options(2)));
  for (const auto& [key, value] : whole.items()) {
    for (const nlohmann::json& wrong :
         {nlohmann::json(-1), nlohmann::json(1.5), nlohmann::json("x"), nlohmann::json(nullptr),
          nlohmann::json::array({7}), nlohmann::json(std::uint64_t{1} << 60)}) {
      nlohmann::json damaged = whole;
      damaged[key] = wrong;
      EXPECT_TRUE(holds(refusal_of(damaged.dump()), "\"" + key + "\"")) << damaged.dump();
    }
  }
}

TEST(OptionsText, RefusesWhatDoesNotGoTogether) {
  const nlohmann::json whole = nlohmann::json::parse(options_text(drawn_options(3)));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = whole;
    changed[key] = value;
    return refusal_of(changed.dump());
  };
  const auto weight = whole["weight"].get<std::string>();
  for (const char* key : {"gradient", "optimizer"}) {
    EXPECT_TRUE(holds(with(key, weight + "d"), key));
    EXPECT_TRUE(holds(with(key, ""), key));
  }
  EXPECT_TRUE(holds(with("activation", weight + "d"), "activation"));
  EXPECT_TRUE(holds(with("recompute", nlohmann::json::array({{0, 0, 1}})), "recompute"));
  EXPECT_TRUE(holds(with("piece_elems", 4097), "multiple of 4096"));
  EXPECT_TRUE(holds(with("microbatches", 0), "microbatches"));
  EXPECT_TRUE(holds(with("fold_groups", whole["microbatches"].get<int>() + 1), "fold_groups"));
  EXPECT_TRUE(holds(with("order", "both"), "microbatch, unit"));
  EXPECT_TRUE(holds(with("lookahead", 1), "unknown"));
  for (const char* text : {"", "{", "[]", "7", "null", "{} {}"}) {
    EXPECT_TRUE(holds(refusal_of(text), "not a JSON object")) << text;
  }
}

}  // namespace
}  // namespace sluice::planner
