#include "tools/sluice/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "engine/planner/verb_needs.hpp"

namespace sluice::cli {
namespace {

std::string tier_line(const train::RunEvent& bytes) {
  return "device " + format_bytes(bytes["device"].get<std::uint64_t>()) + ", pinned " +
         format_bytes(bytes["pinned"].get<std::uint64_t>()) + ", storage " +
         format_bytes(bytes["storage"].get<std::uint64_t>());
}

// The device of a plan event, for people; a second line says why it is no GPU.
std::string device_lines(const train::RunEvent& plan, const config::Config& config) {
  if (plan["backend"] == "host") {
    std::string missing = plan.value("gpu_missing", "");
    const bool chosen = config.memory.backend == config::Config::Backend::kAuto;
    if (missing.empty() && chosen && plan.contains("ranks")) {
      missing = "several ranks use GPUs only with memory.backend = \"cuda\"";
    }
    return "CPU (emulates a GPU's memory)" +
           (missing.empty() ? "" : "\n            GPU not used: " + missing);
  }
  return plan["device_name"].get<std::string>() + " (" + plan["backend"].get<std::string>() + ")";
}

// "weight 96.0 MiB pinned; master 128.0 MiB pinned + 64.0 MiB storage", …
std::string placement_line(const train::RunEvent& kinds) {
  std::string line;
  for (const auto& [kind, tiers] : kinds.items()) {
    std::string places;
    for (const Tier tier : kTiers) {
      const std::string name(tier_name(tier));
      if (!tiers.contains(name)) continue;
      places += (places.empty() ? " " : " + ") + format_bytes(tiers[name].get<std::uint64_t>()) +
                " " + name;
    }
    if (places.empty()) continue;
    line += (line.empty() ? "" : "; ") + kind + places;
  }
  return line;
}

std::string moved_line(const train::RunEvent& bytes) {
  std::string sent;
  if (bytes.contains("sent")) {
    sent = ", sent " + format_bytes(bytes["sent"]["data"].get<std::uint64_t>());
    for (const auto& [group, where] :
         {std::pair("tensor", "tensor group"), std::pair("context", "context group"),
          std::pair("inner", "tensor and context groups")}) {
      if (!bytes["sent"].contains(group)) continue;
      sent +=
          " and " + format_bytes(bytes["sent"][group].get<std::uint64_t>()) + " in its " + where;
    }
  }
  return "up " + format_bytes(bytes["upload"].get<std::uint64_t>()) + ", down " +
         format_bytes(bytes["download"].get<std::uint64_t>()) + ", storage read " +
         format_bytes(bytes["storage_read"].get<std::uint64_t>()) + ", written " +
         format_bytes(bytes["storage_write"].get<std::uint64_t>()) + sent;
}

// A redo costs one more update than the plain order. If most updates are redone, speculation loses.
void add_speculation(std::string& text, const train::RunEvent& speculation) {
  const auto steps = speculation["steps"].get<std::int64_t>();
  const auto redone = speculation["redone_steps"].get<std::int64_t>();
  append_format(text, "redone      %lld of %lld updates, %s%s\n", static_cast<long long>(redone),
                static_cast<long long>(steps),
                format_seconds(speculation["redo_time_s"].get<double>()).c_str(),
                2 * redone > steps
                    ? ": clipping is mostly active, another optimizer.placement would be faster"
                    : "");
}

// The figures of the ranks that need most, or of the only rank.
const train::RunEvent& of_fullest(const train::RunEvent& plan) {
  return plan.contains("job") ? plan["job"]["fullest"] : plan;
}

// Only for a plan that spills: "activations of units: 5 device, 9 pinned; up 1.0 MiB, down …", and
// the saved parts that lie elsewhere, "qkv 1.0 MiB pinned, …".
void add_activations(std::string& text, const train::RunEvent& plan) {
  const train::RunEvent& units = plan["units_by_tier"]["activation"];
  const train::RunEvent& moved = of_fullest(plan)["activation_bytes_moved"];
  if (moved["download"] == 0) return;
  std::string places;
  for (const auto& [tier, count] : units.items()) {
    places += (places.empty() ? "" : ", ") + std::to_string(count.get<int>()) + " " + tier;
  }
  append_format(text, "spilled     activations of units: %s; %s\n", places.c_str(),
                moved_line(moved).c_str());
  std::string parts;
  for (const auto& [part, tiers] : of_fullest(plan)["saved_by_tier"].items()) {
    for (const auto& [tier, bytes] : tiers.items()) {
      if (tier == "device") continue;
      parts += (parts.empty() ? "" : ", ") + part + " " + format_bytes(bytes.get<std::uint64_t>()) +
               " " + tier;
    }
  }
  if (!parts.empty()) append_format(text, "saved       %s\n", parts.c_str());
}

// "device 2.0 MiB, storage 93.1 MiB": the tiers in which a phase uses less than the plan's peak.
std::string less_than_peak(const train::RunEvent& bytes, const train::RunEvent& peak) {
  std::string line;
  for (const Tier tier : kTiers) {
    const std::string name(tier_name(tier));
    const std::string text = format_bytes(bytes[name].get<std::uint64_t>());
    if (text == format_bytes(peak[name].get<std::uint64_t>())) continue;
    line += (line.empty() ? "" : ", ") + name + " " + text;
  }
  return line;
}

// The phases that use less than the plan's peaks, in groups of equal bytes, and the files that are
// written: "load, resume: device 2.0 MiB; files: checkpoint 93.1 MiB, export 37.3 MiB".
std::string phases_line(const train::RunEvent& plan) {
  std::vector<std::pair<std::string, std::string>> groups;  // bytes, phases
  for (const planner::Verb verb : planner::kVerbs) {
    const std::string name(planner::verb_name(verb));
    const std::string text = less_than_peak(of_fullest(plan)["peak_bytes_by_verb"][name],
                                            of_fullest(plan)["peak_bytes"]);
    if (text.empty()) continue;
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return group.first == text; });
    if (same == groups.end()) {
      groups.emplace_back(text, name);
    } else {
      same->second += ", " + name;
    }
  }
  std::string line;
  for (const auto& [bytes, verbs] : groups) {
    line += (line.empty() ? "" : "; ") + verbs + ": " + bytes;
  }
  std::string files;
  for (const auto& [verb, name] :
       {std::pair("save", "checkpoint "), std::pair("export", "export ")}) {
    const auto bytes = plan["file_bytes"][verb].get<std::uint64_t>();
    if (bytes > 0) files += (files.empty() ? "files: " : ", ") + (name + format_bytes(bytes));
  }
  if (!line.empty() && !files.empty()) line += "; ";
  return line + files;
}

// Only for a batch that the planner divided.
void add_split(std::string& text, const train::RunEvent& batch) {
  if (!batch.contains("tried")) return;
  std::string others;  // that were planned
  for (const train::RunEvent& split : batch["tried"]) {
    if (split["micro_batch"] == batch["micro_batch"] || split["step_time_s"].is_null()) continue;
    others += (others.empty() ? " (" : ", ") + std::to_string(split["micro_batch"].get<int>()) +
              ": " + format_seconds(split["step_time_s"].get<double>());
  }
  if (!others.empty()) others += ")";
  const auto count = batch["accumulate"].get<std::int64_t>();
  append_format(text, "batch       %lld samples a step: %lld micro-batch%s of %lld%s\n",
                static_cast<long long>(batch["samples"].get<std::int64_t>()),
                static_cast<long long>(count), count == 1 ? "" : "es",
                static_cast<long long>(batch["micro_batch"].get<std::int64_t>()), others.c_str());
}

// "1.0 MiB", or "1.0 MiB to 1.1 MiB" where ranks differ.
std::string range_text(const std::vector<std::uint64_t>& bytes) {
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  const std::string text = format_bytes(*least);
  return text == format_bytes(*most) ? text : text + " to " + format_bytes(*most);
}

// The units of a pipeline rank's stages: "0-3", or "0-1 and 6-7".
std::string units_text(const train::RunEvent& pipeline, int pipeline_rank) {
  std::string text;
  for (const train::RunEvent& stage : pipeline["stages"]) {
    if (stage["rank"].get<int>() != pipeline_rank) continue;
    const auto begin = stage["units"][0].get<int>(), last = stage["units"][1].get<int>() - 1;
    text += (text.empty() ? "" : " and ") + std::to_string(begin) +
            (last > begin ? "-" + std::to_string(last) : "");
  }
  return text;
}

// A plan on paper may have thousands of classes. Then it shows the first and the last one, the
// slowest and the fullest.
std::vector<train::RunEvent> shown_ranks(const train::RunEvent& plan) {
  const train::RunEvent& all = plan["per_rank"];
  constexpr std::size_t kMostLines = 16;
  if (all.size() <= kMostLines) return all.get<std::vector<train::RunEvent>>();
  const train::RunEvent& job = plan["job"];
  std::vector<train::RunEvent> lines;
  for (std::size_t at = 0; at < all.size(); ++at) {
    const train::RunEvent& rank = all[at]["rank"];
    const bool is_end = at == 0 || at + 1 == all.size();
    if (is_end || rank == job["slowest"]["rank"] || rank == job["fullest"]["rank"]) {
      lines.push_back(all[at]);
    }
  }
  return lines;
}

// "stage 3, ranks 96-127": the ranks of a class, or one rank.
std::string class_text(const train::RunEvent& ranks) {
  std::string text;
  for (const train::RunEvent& stage : ranks.value("stages", train::RunEvent::array())) {
    text += (text.empty() ? "" : ", ") + std::to_string(stage.get<int>());
  }
  const bool several = ranks.contains("stages") && ranks["stages"].size() > 1;
  if (!text.empty()) text = (several ? "stages " : "stage ") + text + ", ";
  const auto first = ranks["rank"].get<int>(), last = ranks["last_rank"].get<int>();
  const auto alike = ranks["alike"].get<int>();
  if (alike == 1) return text + "rank " + std::to_string(first);
  const std::string range = std::to_string(first) + "-" + std::to_string(last);
  return last - first + 1 == alike ? text + "ranks " + range
                                   : text + std::to_string(alike) + " of ranks " + range;
}

// The parts of a step on the ranks that end last.
std::string shares_text(const train::RunEvent& shares_s) {
  constexpr std::array<std::pair<const char*, const char*>, 10> kNames{
      {{"passes", "passes"},
       {"bubble", "bubble"},
       {"slower_stages", "waits for slower stages"},
       {"messages", "messages between stages"},
       {"tensor", "sums of the tensor group"},
       {"context", "exchanges of the context group"},
       {"inner", "sums of tensor and context groups"},
       {"data", "exchanges of data-parallel ranks"},
       {"transfers", "waits for copies, storage and the host"},
       {"updates", "updates"}}};
  double all_s = 0;
  for (const auto& [name, seconds] : shares_s.items()) all_s += seconds.get<double>();
  std::string text;
  for (const auto& [key, name] : kNames) {
    if (!shares_s.contains(key)) continue;
    text += (text.empty() ? "" : ", ") + std::string(name);
    append_format(text, " %.1f%%", 100 * shares_s[key].get<double>() / all_s);
  }
  return text;
}

// Only for several ranks: those that need most, and those that end last. The first ones have the
// lines about memory, the others those about time.
void add_job(std::string& text, const train::RunEvent& plan) {
  if (!plan.contains("job")) return;
  const train::RunEvent& job = plan["job"];
  const auto whose = [&](const char* figures, const train::RunEvent& ranks) {
    return std::string(" (") + figures +
           (ranks["alike"].get<int>() == 1 ? " of this rank)" : " of these ranks)");
  };
  const train::RunEvent& fullest = job["fullest"];
  const train::RunEvent& slowest = job["slowest"];
  append_format(text, "fullest     %s%s\n", class_text(fullest).c_str(),
                whose("memory", fullest).c_str());
  append_format(text, "slowest     %s%s: %s of a step\n", class_text(slowest).c_str(),
                whose("traffic", slowest).c_str(), shares_text(slowest["shares_s"]).c_str());
}

// Only for plans on paper: the classes of ranks, and the bytes of a step over all ranks.
void add_world(std::string& text, const train::RunEvent& plan) {
  if (!plan.contains("world")) return;
  const train::RunEvent& world = plan["world"];
  const auto bytes = [&](const char* link) {
    return format_bytes(world["bytes_moved"][link].get<std::uint64_t>());
  };
  append_format(text, "world       %d ranks in %d classes of ranks that are alike\n",
                plan["ranks"].get<int>(), world["classes"].get<int>());
  append_format(
      text,
      "moved       by all ranks a step: %s inside nodes, %s between nodes; up %s, down %s; "
      "storage read %s, written %s\n",
      bytes("node").c_str(), bytes("network").c_str(), bytes("upload").c_str(),
      bytes("download").c_str(), bytes("storage_read").c_str(), bytes("storage_write").c_str());
}

// "bubble 1.2 ms", or "no bubble".
std::string bubble_text(const train::RunEvent& seconds) {
  const double bubble_s = seconds.get<double>();
  return bubble_s > 0 ? "bubble " + format_seconds(bubble_s) : "no bubble";
}

// Only for pipelines: the order and its bubble, and a line for each rank.
void add_pipeline(std::string& text, const train::RunEvent& plan) {
  if (!plan.contains("pipeline")) return;
  const train::RunEvent& pipeline = plan["pipeline"];
  const auto ranks = pipeline["ranks"].get<int>();
  append_format(text, "pipeline    %s on %d ranks, %zu stages; %s",
                pipeline["order"].get<std::string>().c_str(), ranks, pipeline["stages"].size(),
                bubble_text(pipeline["bubble_s"]).c_str());
  if (const auto share = pipeline["bubble_share"].get<double>(); share > 0) {
    append_format(text, ", %.1f%% of its passes' span", 100 * share);
  }
  text += "\n";
  const int data_ranks = plan["ranks"].get<int>() / ranks;
  for (const train::RunEvent& rank : shown_ranks(plan)) {
    const auto number = rank["rank"].get<int>();
    const auto alike = rank.value("alike", 1);
    const std::string others = alike == 1 ? "" : " (" + std::to_string(alike) + " alike)";
    append_format(text,
                  "rank %-6d units %s%s; %s; sends %s of activations a step; computes %s, %s\n",
                  number, units_text(pipeline, number / data_ranks).c_str(), others.c_str(),
                  tier_line(rank["peak_bytes"]).c_str(),
                  format_bytes(rank["sent"].value("activations", std::uint64_t{0})).c_str(),
                  format_seconds(rank["compute_s"].get<double>()).c_str(),
                  bubble_text(rank["bubble_s"]).c_str());
  }
}

// Only for several ranks: their number and stage, and the bytes that each keeps and sends.
void add_ranks(std::string& text, const train::RunEvent& plan) {
  if (!plan.contains("ranks")) return;
  std::vector<std::uint64_t> state;
  std::map<std::string, std::vector<std::uint64_t>> sent;
  for (const train::RunEvent& rank : plan["per_rank"]) {
    state.push_back(rank["state_bytes"].get<std::uint64_t>());
    for (const auto& [purpose, bytes] : rank["sent"].items()) {
      sent[purpose].push_back(bytes.get<std::uint64_t>());
    }
  }
  append_format(text, "ranks       %d, ZeRO stage %d, fold groups %d; each keeps %s of state\n",
                plan["ranks"].get<int>(), plan["zero"].get<int>(), plan["fold_groups"].get<int>(),
                range_text(state).c_str());
  append_format(text, "sent        by each rank a step: gradients %s, weights %s, norm %s\n",
                range_text(sent["gradients"]).c_str(), range_text(sent["weights"]).c_str(),
                range_text(sent["norm"]).c_str());
  const bool both = plan.contains("tensor") && plan.contains("context");
  for (const auto& [group, has] : {std::pair("tensor", "parts of each layer"),
                                   std::pair("context", "parts of each sequence")}) {
    if (!plan.contains(group)) continue;
    append_format(text, "%-11s groups of %d ranks, which have %s; each rank sends %s %s a step\n",
                  group, plan[group].get<int>(), has, range_text(sent["inner"]).c_str(),
                  both ? "in both" : "there");
  }
  if (plan["server"].get<bool>()) {
    const std::string mode = plan["server_mode"];
    append_format(text, "server      %s\n",
                  mode == "bsp" ? "rank 0 sums, keeps all optimizer state and updates for all"
                  : mode == "asp"
                      ? "rank 0 applies each micro-batch by itself; results are those of this order"
                      : "each rank in turn sums, updates for all, and sends the state on");
  }
  if (plan["reduction"] == "ring") {
    append_format(text,
                  "sums        around the ring of ranks: reproducible, but the results depend on "
                  "the number of ranks, %d\n",
                  plan["ranks"].get<int>());
  }
  if (plan.contains("partial_sums") && plan["partial_sums"] != "device") {
    append_format(text, "partial     each rank's sums of micro-batches wait on: %s\n",
                  plan["partial_sums"].get<std::string>().c_str());
  }
  // A plan alone has no places.
  if (!plan.contains("places")) return;
  std::string places;
  for (const train::RunEvent& rank : plan["places"]) {
    places += (places.empty() ? "" : "; ") + std::string("rank ") +
              std::to_string(rank["rank"].get<int>()) + " is process " +
              std::to_string(rank["process"].get<std::int64_t>()) + " on " +
              rank["host"].get<std::string>() + ", processors " +
              rank["processors"].get<std::string>();
  }
  append_format(text, "places      %s\n", places.c_str());
}

// The budgets, with the source of those that the configuration leaves to the machine; empty if it
// gives both of memory.
std::string budgets_line(const train::RunEvent& plan) {
  const std::map<std::string, std::string> words{
      {"machine", "this machine's free memory less a reserve"},
      {"profile", "the profile's memory less a reserve"},
      {"assumed", "assumed, since the profile does not state its size"}};
  std::string sources;
  for (const auto& [source, text] : words) {
    std::string tiers;
    for (const char* tier : {"device", "pinned"}) {
      if (plan["budget_sources"][tier] != source) continue;
      tiers += (tiers.empty() ? "" : " and ") + std::string(tier);
    }
    if (!tiers.empty()) sources += (sources.empty() ? "" : "; ") + tiers + ": " + text;
  }
  return sources.empty() ? sources : tier_line(plan["budget_bytes"]) + " (" + sources + ")";
}

// "none", or "unit in 3 of 8 units".
std::string recompute_words(const train::RunEvent& plan) {
  const auto units = plan["recomputed"]["units"].get<int>();
  const auto of = plan["recomputed"]["of_units"].get<int>();
  const auto policy = plan["recompute"].get<std::string>();
  if (units == 0) return policy;
  const std::string count = units == of ? "all" : std::to_string(units) + " of";
  return policy + " in " + count + " " + std::to_string(of) + " units";
}

}  // namespace

void Progress::plan(const train::RunEvent& plan) {
  if (plan["peak_flops_per_s"].is_number()) {
    peak_flops_per_s_ = plan["peak_flops_per_s"].get<double>();
  }
  std::string text;
  append_format(text, "device      %s\n", device_lines(plan, config_).c_str());
  const auto state = of_fullest(plan)["state_bytes"].get<std::uint64_t>();
  append_format(text, "model       %.1f M parameters, %s of training state%s\n",
                static_cast<double>(plan["parameters"].get<std::uint64_t>()) * 1e-6,
                format_bytes(state).c_str(), plan.contains("ranks") ? " on a rank" : "");
  const bool shares = plan["shares_device"].get<bool>();
  std::string update = plan["optimizer_placement"].get<std::string>();
  const auto carried = plan["carried_units"].get<int>();
  if (carried > 0 && update != "next_forward") {
    update += ", that of " + std::to_string(carried) + " units in the next forward pass";
  }
  std::string order = plan["order"].get<std::string>();
  if (plan["turns"].get<int>() > 1) order += ", segments of two micro-batches in turn";
  append_format(text, "plan        %s (recompute: %s, order: %s, update: %s%s)\n",
                tier_line(of_fullest(plan)["peak_bytes"]).c_str(), recompute_words(plan).c_str(),
                order.c_str(), update.c_str(),
                shares ? ", weights and activations share the device" : "");
  const std::string budgets = budgets_line(plan);
  if (!budgets.empty()) append_format(text, "budgets     %s\n", budgets.c_str());
  add_job(text, plan);
  add_ranks(text, plan);
  add_world(text, plan);
  add_pipeline(text, plan);
  add_split(text, plan["batch"]);
  const std::string phases = phases_line(plan);
  if (!phases.empty()) append_format(text, "phases      %s\n", phases.c_str());
  append_format(text, "placement   %s\n",
                placement_line(of_fullest(plan)["state_by_tier"]).c_str());
  const train::RunEvent& slowest = plan.contains("job") ? plan["job"]["slowest"] : plan;
  append_format(text, "a step      %s; about %s, bound by %s\n",
                moved_line(slowest["bytes_moved"]).c_str(),
                format_seconds(plan["step_time_s"].get<double>()).c_str(),
                plan["bound_by"].get<std::string>().c_str());
  add_activations(text, plan);
  if (plan.contains("free_optimizer_step_time_s")) {
    append_format(text, "            about %s with an optimizer that takes no time%s\n",
                  format_seconds(plan["free_optimizer_step_time_s"].get<double>()).c_str(),
                  plan.contains("ranks") ? " (rank 0 simulated alone)" : "");
  }
  if (plan.contains("speculation")) {
    const train::RunEvent& speculation = plan["speculation"];
    append_format(text, "a redo      %s; about %s; the second version of state takes %s\n",
                  moved_line(speculation["redo_bytes_moved"]).c_str(),
                  format_seconds(speculation["redo_time_s"].get<double>()).c_str(),
                  tier_line(speculation["second_version_bytes"]).c_str());
  }
  if (plan["profile"] == "unmeasured") {
    append_format(text,
                  "            (times of a default machine: `sluice doctor` measures this one)\n");
  }
  console_.answer(text);
}

void Progress::explain() const {
  std::string text =
      "            (stalled: the share of a step in which products wait for transfers or "
      "updates)\n";
  if (peak_flops_per_s_) {
    append_format(
        text,
        "            (MFU: 6 x parameters in products + 12 x layers x hidden x seq operations "
        "a token, of the %.3g TFLOP/s that doctor measured)\n",
        *peak_flops_per_s_ * 1e-12);
  }
  console_.notice(text);
}

void Progress::end_line() {
  if (line_open_) std::fputc('\n', stderr);
  line_open_ = false;
}

void Progress::step(const train::StepReport& report) {
  const Clock::time_point now = Clock::now();
  const bool first = first_step_ < 0;
  // Reports of one schedule's steps come together; each has an even share of its time.
  const bool has_own_time = first || config_.parallel.delays_updates();
  time_left_.add_step(has_own_time ? report.step_time_s
                                   : std::chrono::duration<double>(now - last_step_end_).count());
  last_step_end_ = now;
  if (first) {
    first_step_ = report.step;
    first_loss_ = report.loss;
  }
  last_loss_ = report.loss;
  if (console_.quiet) return;
  const bool terminal = terminal_columns(STDERR_FILENO) > 0;
  const std::int64_t every = config_.log.every > 0 ? config_.log.every : report.last_step;
  const bool ends = first || report.step == report.last_step;
  if (!terminal && report.step % every != 0 && !ends) return;
  std::string line = fit_fields(step_fields(report), line_columns(STDERR_FILENO));
  line = terminal ? "\r\033[K" + line : line + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
  line_open_ = terminal;
}

// On a narrow terminal the least important fields are left out.
std::vector<StatusField> Progress::step_fields(const train::StepReport& report) const {
  std::vector<StatusField> fields;
  const auto add = [&](int importance) -> std::string& {
    return fields.emplace_back(StatusField{{}, importance}).text;
  };
  append_format(
      add(9), "step %lld/%lld (%lld%%)", static_cast<long long>(report.step),
      static_cast<long long>(report.last_step),
      static_cast<long long>(100 * report.step / std::max<std::int64_t>(1, report.last_step)));
  append_format(add(8), "loss %.4f", report.loss);
  append_format(add(4), "norm %.3f", report.grad_norm);
  append_format(add(1), "lr %.3g", report.lr);
  append_format(add(5), "%s/step", format_seconds(report.step_time_s).c_str());
  append_format(add(6), "%.0f tokens/s", report.tokens_per_s);
  if (report.mfu) append_format(add(2), "MFU %.1f%%", 100 * *report.mfu);
  append_format(add(3), "stalled %.0f%%", 100.0 * report.stalled_fraction);
  const double left = time_left_.seconds_for(report.last_step - report.step);
  append_format(add(7), "ETA %s", left > 0 ? format_seconds(left).c_str() : "-");
  return fields;
}

void Progress::done(const train::RunEvent& event) {
  end_line();
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const auto steps = event["steps"].get<std::int64_t>();
  std::string text;
  append_format(text, "done        %lld steps", static_cast<long long>(steps));
  if (first_step_ > 1) {
    append_format(text, ", the last %lld of them", static_cast<long long>(steps - first_step_ + 1));
  }
  if (first_step_ >= 0) {
    append_format(text, " in %s, loss %.4f -> %.4f", format_seconds(elapsed).c_str(), first_loss_,
                  last_loss_);
  } else if (steps > 0) {
    text += "; no step was left to run";
  }
  text += "\n";
  if (event.contains("speculation")) add_speculation(text, event["speculation"]);
  append_format(text, "memory      %s (peak)\n", tier_line(event["peak_bytes"]).c_str());
  const std::string engine = event["storage_engine"];
  append_format(text, "moved       %s%s\n", moved_line(event["bytes_moved"]).c_str(),
                engine == "none" ? "" : ("; storage engine " + engine).c_str());
  const std::string weights =
      config_.checkpoint.final ? config_.log.dir + "/weights.safetensors" : "not saved";
  append_format(text, "weights     %s, hash %s\n", weights.c_str(),
                event["weights_hash"].get<std::string>().c_str());
  if (event.contains("huggingface")) {
    append_format(text, "            %s, the same for transformers' from_pretrained\n",
                  event["huggingface"].get<std::string>().c_str());
  }
  append_format(text, "report      sluice report %s\n", config_.log.dir.c_str());
  console_.answer(text);
}

void Progress::event(const train::RunEvent& event) {
  const std::string kind = event["event"];
  std::string text;
  if (kind == "step") {
    if (event.value("overflow", false)) end_line();  // a line about it follows
  } else if (kind == "resume") {
    append_format(text, "resumed     from step %lld of %s\n",
                  static_cast<long long>(event["step"].get<std::int64_t>()),
                  event["dir"].get<std::string>().c_str());
  } else if (kind == "eval") {
    append_format(text, "eval        step %lld: loss %.4f\n",
                  static_cast<long long>(event["step"].get<std::int64_t>()),
                  event["loss"].get<double>());
  } else if (kind == "checkpoint") {
    append_format(text, "saved       step %lld in %s\n",
                  static_cast<long long>(event["step"].get<std::int64_t>()),
                  event["dir"].get<std::string>().c_str());
  } else if (kind == "done") {
    done(event);
  }
  if (text.empty()) return;
  end_line();
  console_.notice(text);
}

}  // namespace sluice::cli
