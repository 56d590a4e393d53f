#include "tools/bench/bench_table.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_text.hpp"
#include "base/units.hpp"
#include "tools/bench/adam_variants.hpp"

namespace sluice::bench {
namespace {

using nlohmann::json;

[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

// Each peer's rate, and the ratio of each of our rates to it.
std::string peers_table(const json& peers) {
  std::string text;
  for (const auto& [name, peer] : peers["variants"].items()) {
    if (text.empty()) {
      text = formatted("\n%-24s %12s", "peer", "M params/s");
      for (const auto& ratio : peer["ratio"].items())
        text += formatted(" %7s", ratio.key().c_str());
      text += '\n';
    }
    text += formatted("%-24s %12.0f", name.c_str(), peer["params_per_s"].get<double>() / 1e6);
    for (const json& ratio : peer["ratio"]) text += formatted(" %6.2fx", ratio.get<double>());
    text += "  " + peer["job"].get<std::string>() + '\n';
  }
  text +=
      "\n" + peers["versions"].get<std::string>() + "; ratios: ours / the peer's, same rounds\n";
  if (peers.contains("missing")) text += peers["missing"].get<std::string>() + "\n";
  return text;
}

std::string adam_table(const json& figures) {
  std::string text =
      formatted("fused updates, %d threads, %s, %lld parameters, median of %d rounds\n\n",
                figures["threads"].get<int>(),
                figures["instruction_set"].get_ref<const std::string&>().c_str(),
                figures["elems"].get<long long>(), figures["rounds"].get<int>()) +
      formatted("%-13s %-56s %10s %8s %8s %7s %6s\n", "variant", "gradient -> weight, states",
                "M params/s", "limit", "B/param", "GiB/s", "ratio");
  for (const AdamVariant& variant : adam_variants()) {
    const std::string name(variant.name);
    if (!figures["variants"].contains(name)) continue;
    const json& of = figures["variants"][name];
    const auto figure = [&](const char* key) { return of[key].get<double>(); };
    text += formatted("%-13s %-56s %10.0f %8.0f %8.2f %7.1f %6.2f\n", name.c_str(),
                      of["what"].get_ref<const std::string&>().c_str(),
                      figure("params_per_s") / 1e6, figure("traffic_params_per_s") / 1e6,
                      figure("bytes_per_param"), figure("gib_per_s"), figure("ratio"));
  }
  text += "\nlimit: the same bytes read and written with no arithmetic, in the same run\n";
  return figures.contains("peers") ? text + peers_table(figures["peers"]) : text;
}

// "0.98 (0.95-1.01)"; the ratio alone if there were too few rounds.
std::string ratio_with_interval(const json& figures, const std::string& name) {
  const std::string text = formatted("%.2f", figures[name].get<double>());
  const json& interval = figures[name + "_interval"];
  if (interval.is_null()) return text;
  return text + formatted(" (%.2f-%.2f)", interval[0].get<double>(), interval[1].get<double>());
}

std::string storage_table(const json& figures) {
  const bool fio = !figures.contains("fio");
  std::string text = formatted(
      "%s, %llu KiB requests, %d in flight, a file of %llu MiB, median of %d rounds\n\n",
      figures["engine"].get_ref<const std::string&>().c_str(),
      figures["block_bytes"].get<unsigned long long>() >> 10, figures["depth"].get<int>(),
      figures["file_bytes"].get<unsigned long long>() >> 20, figures["rounds"].get<int>());
  text += formatted("%-8s %8s %11s", "", "GiB/s", "CPU ms/GiB");
  const bool best = figures.contains("fio_sweep");
  if (fio) text += formatted(" %10s %15s %17s", "fio GiB/s", "fio CPU ms/GiB", "ratio");
  if (best) text += formatted(" %11s %16s %17s", "best GiB/s", "at", "of best");
  text += '\n';
  for (const std::string mix : {"read", "write", "duplex"}) {
    const auto figure = [&](const std::string& name) { return figures[name].get<double>(); };
    text += formatted("%-8s %8.2f %11.1f", mix.c_str(), figure(mix + "_gib_per_s"),
                      figure(mix + "_cpu_ms_per_gib"));
    if (fio) {
      text += formatted(" %10.2f %15.1f %17s", figure("fio_" + mix + "_gib_per_s"),
                        figure("fio_" + mix + "_cpu_ms_per_gib"),
                        ratio_with_interval(figures, "ratio_" + mix).c_str());
    }
    if (best) {
      const auto block = figures["best_fio_" + mix + "_block_bytes"].get<unsigned long long>();
      const std::string at = std::to_string(block >> 10) + " KiB x " +
                             json_text(figures["best_fio_" + mix + "_depth"]);
      text += formatted(" %11.2f %16s %17s", figure("best_fio_" + mix + "_gib_per_s"), at.c_str(),
                        ratio_with_interval(figures, "default_of_best_" + mix).c_str());
    }
    text += '\n';
  }
  if (fio) {
    text +=
        "\nratio: ours / fio's at the same setting; of best: ours / fio's fastest; medians of the "
        "rounds'\nratios, and their 95% interval if rounds are independent (runs differ by "
        "more)\n";
    if (figures["fio_depth"] != figures["depth"]) {
      text += formatted("fio rounds the requests in flight up to a power of two: %d\n",
                        figures["fio_depth"].get<int>());
    }
  }
  text +=
      formatted("\ntags: one core tags %.1f GiB/s (fp32; bf16 %.1f) in blocks of 4,096 elements,",
                figures["tag_fp32_gib_per_s"].get<double>(),
                figures["tag_bf16_gib_per_s"].get<double>()) +
      formatted(" %.0f%% of the time of these reads, %.0f%% of these writes\n",
                100 * figures["tag_share_read"].get<double>(),
                100 * figures["tag_share_write"].get<double>());
  if (fio && figures["fio_memory"] == "small pages") {
    text +=
        "\nfio had small pages, which make it slower; `sysctl vm.nr_hugepages=40` as root gives "
        "it huge ones\n";
  }
  if (!fio) text += "\nno comparison with fio: " + figures["fio"].get<std::string>() + "\n";
  return text;
}

std::string step_table(const json& figures) {
  std::string text = formatted(
                         "AdamW on storage (%s), %llu parameters, %d threads, medians of %d "
                         "rounds\n\n",
                         figures["engine"].get_ref<const std::string&>().c_str(),
                         figures["parameters"].get<unsigned long long>(),
                         figures["threads"].get<int>(), figures["rounds"].get<int>()) +
                     formatted("%-11s %13s %7s %8s %8s %8s %8s %7s %7s %8s  %s\n", "variant",
                               "B/param r+w", "step s", "I/O s", "fio s", "update s", "no upd s",
                               "by I/O", "by fio", "CPU s", "bound by");
  for (const auto& [name, of] : figures["variants"].items()) {
    const auto figure = [&of = of](const char* key) { return of.value(key, 0.0); };
    text += formatted("%-11s %6.2f+%6.2f %7.2f %8.2f %8.2f %8.2f %8.2f %7.3f %7.3f %8.3f  %s\n",
                      name.c_str(), figure("read_bytes_per_param"), figure("write_bytes_per_param"),
                      figure("step_s"), figure("io_alone_s"), figure("fio_s"),
                      figure("update_alone_s"), figure("without_update_s"), figure("ratio_io"),
                      figure("ratio_fio"), figure("cpu_beyond_update_s_per_256m"),
                      of["bound_by"].get_ref<const std::string&>().c_str());
    if (of.contains("fio")) text += "  fio: " + of["fio"].get<std::string>() + "\n";
  }
  return text +
         "\nI/O, fio: the same bytes, duplex; no upd: the step's schedule without its updates"
         "\nCPU: time beyond the updates', for each 2^28 parameters\n";
}

std::string allocator_table(const json& figures) {
  const int threads = figures["threads"].get<int>();
  std::string text = formatted("an allocation or a free, ns, median of %d rounds\n\n",
                               figures["rounds"].get<int>()) +
                     formatted("%-6s %-8s %8s %8s %8s %8s %10s %8s %8s\n", "mix", "", "mean", "p50",
                               "p99", "p99.9", "max", "ratio", "locked");
  for (const std::string mix : {"small", "large", "step"}) {
    for (const std::string policy : {"native", "dynamic", "planned"}) {
      const auto figure = [&](const char* name) {
        return figures[policy + "_" + mix + name].get<double>();
      };
      text += formatted("%-6s %-8s %8.1f %8.0f %8.0f %8.0f %10.0f", mix.c_str(), policy.c_str(),
                        figure("_ns"), figure("_p50_ns"), figure("_p99_ns"), figure("_p999_ns"),
                        figure("_max_ns"));
      text += policy == "native"
                  ? "\n"
                  : formatted(" %8.2f %8.2f\n", figure("_ratio"), figure("_locked_ratio"));
    }
  }
  text +=
      formatted("\n%-6s %18s %18s %16s\n", "mix", "own streams", "one stream", "record ns/event");
  for (const std::string mix : {"small", "large", "step"}) {
    text += formatted("%-6s %17.2fx %17.2fx %16.1f\n", mix.c_str(),
                      figures["own_streams_" + mix + "_scaling"].get<double>(),
                      figures["same_stream_" + mix + "_scaling"].get<double>(),
                      figures["record_" + mix + "_ns_per_event"].get<double>());
  }
  return text + formatted(
                    "\nratio: native's mean / this mean; locked: native with the locks that "
                    "PyTorch takes"
                    "\nstreams: dynamic, rate of %d threads / rate of one\n",
                    threads);
}

std::string copy_table(const json& figures) {
  std::string text =
      formatted("%s (%s), %llu MiB each way, median of %d rounds\n\n",
                figures["device"].get_ref<const std::string&>().c_str(),
                figures["backend"].get_ref<const std::string&>().c_str(),
                figures["bytes"].get<unsigned long long>() >> 20, figures["rounds"].get<int>()) +
      formatted("%-10s %12s %12s %12s\n", "piece", "to device", "to host", "both, GiB/s");
  for (const std::string piece : {"64KiB", "1MiB", "16MiB", "64MiB"}) {
    const json& of = figures["copies"][piece];
    text += formatted("%-10s %12.2f %12.2f %12.2f\n", piece.c_str(),
                      of["to_device_gib_per_s"].get<double>(),
                      of["to_host_gib_per_s"].get<double>(), of["duplex_gib_per_s"].get<double>());
  }
  text += formatted("\n%-10s %12s %12s %12s %12s\n", "handle", "create us", "map us", "unmap us",
                    "release us");
  for (const std::string handle : {"2MiB", "32MiB", "64MiB"}) {
    const json& of = figures["handles"][handle];
    text += formatted("%-10s %12.1f %12.1f %12.1f %12.1f\n", handle.c_str(),
                      of["create_us"].get<double>(), of["map_us"].get<double>(),
                      of["unmap_us"].get<double>(), of["release_us"].get<double>());
  }
  return text +
         formatted("\nmemcpy by one host thread: %.2f GiB/s; 1 MiB to the device: %.2f of it\n",
                   figures["memcpy_gib_per_s"].get<double>(),
                   figures["ratio_to_device"].get<double>());
}

std::string by_hand_line(const json& of) {
  return formatted(
             "  %d of %d fit; the best is %+.1f%% faster; at most %.2f CPU s each, %d over 0.5 s; ",
             of["fits"].get<int>(), of["settings"].get<int>(), 100 * of["most_gain"].get<double>(),
             of["worst_cpu_s"].get<double>(), of["slow"].get<int>()) +
         of["setting"].get<std::string>() + "\n";
}

std::string plan_quality_table(const json& figures) {
  std::string text;
  for (const json& of : figures["pairs"]) {
    text += formatted("%s: a step of %.2f s, planned in %.2f CPU s\n",
                      of["pair"].get_ref<const std::string&>().c_str(), of["step_s"].get<double>(),
                      of["cpu_s"].get<double>());
    text += "complete settings" + by_hand_line(of["complete"]);
    text += "two settings     " + by_hand_line(of["two"]);
  }
  return text + formatted(
                    "\nworst: %+.1f%% by complete settings, %+.1f%% by two; a complete one planned "
                    "in %.2f CPU s\n",
                    100 * figures["complete_most_gain"].get<double>(),
                    100 * figures["two_most_gain"].get<double>(),
                    figures["complete_worst_cpu_s"].get<double>());
}

std::string small_plans_table(const json& figures) {
  std::string text =
      formatted("%d small models, %d of them fit by exhaustive search; refused wrongly: %s\n",
                figures["count"].get<int>(), figures["fits"].get<int>(),
                json_text(figures["refused_wrongly"]).c_str());
  if (!figures.contains("most_gain")) return text;
  const json& slower = figures["slower"];
  text += formatted(
      "automatic plans take %+.2f%% (median), %+.2f%% (worst); %zu take over 0.5%% more\n",
      100 * figures["median_gain"].get<double>(), 100 * figures["most_gain"].get<double>(),
      slower.size());
  for (const json& each : slower) {
    text += formatted("model %d, %+.2f%%\n", each["model"].get<int>(),
                      100 * each["gain"].get<double>()) +
            "  its plan: " + each["plan"].get<std::string>() +
            "\n  its best: " + each["best"].get<std::string>() + "\n";
  }
  return text;
}

std::string rank_plans_table(const json& plans) {
  std::string text =
      formatted("%-8s %6s %8s %11s %8s %11s %7s %11s %10s\n", "tokens", "ranks", "step s",
                "compute s", "comm s", "traffic s", "over", "ordered s", "GB sent");
  for (const json& plan : plans) {
    const auto figure = [&](const char* key) { return plan[key].get<double>(); };
    text += formatted("%-8d %6d %8.3f %11.3f %8.3f %11.3f %6.1f%% %11.3f %10.1f\n",
                      plan["tokens"].get<int>(), plan["ranks"].get<int>(), figure("step_s"),
                      figure("compute_s"), figure("comm_s"), figure("traffic_s"),
                      100 * figure("over"), figure("ordered_s"), figure("sent_bytes") * 1e-9);
  }
  return text +
         "\ntokens: of each rank; traffic: with two gathers of each unit; over: the step beyond\n"
         "the longer of compute and traffic; ordered: no order of the plan's own gathers, passes "
         "and\n"
         "exchanges takes less, because the first gathers end before the loss and exchanges follow "
         "it\n";
}

std::string world_plans_table(const json& figures) {
  const auto costs = [](const json& of) {
    return formatted("%.1f s of the clock, %.1f CPU s, %.2f GiB\n", of["wall_s"].get<double>(),
                     of["cpu_s"].get<double>(), of["peak_bytes"].get<double>() / (1u << 30));
  };
  const json& large = figures["large"];
  std::string text = formatted("%d ranks, 1 T parameters: ", large["ranks"].get<int>());
  text += large["fits"].get<bool>()
              ? formatted("a step of %.2f s, %d classes; ", large["step_s"].get<double>(),
                          large["classes"].get<int>())
              : std::string("no plan fits; ");
  text += costs(large);
  const json& meshes = figures["meshes"];
  text +=
      formatted("the best of %zu meshes of %d ranks: a step of %.2f s; ", meshes["meshes"].size(),
                meshes["ranks"].get<int>(), meshes["step_s"].get<double>()) +
      costs(meshes);
  text += formatted("\n%-10s %6s %10s %10s %8s\n", "billions", "GPUs", "published", "simulated",
                    "error");
  for (const json& row : figures["published"]) {
    text += formatted("%-10.1f %6d %10.0f ", row["billions"].get<double>(), row["ranks"].get<int>(),
                      row["published_tflops"].get<double>());
    text += row["fits"].get<bool>() ? formatted("%10.1f %+7.1f%%\n", row["tflops"].get<double>(),
                                                100 * row["error"].get<double>())
                                    : std::string("does not fit\n");
  }
  const json& profile = figures["profile"];
  return text +
         formatted(
             "\nTFLOP/s of one GPU, with those of recomputation; published: Narayanan et al. "
             "2021, table 1\nefficiencies of all rows: products at %.0f%% of the peak, memory "
             "at %.0f GB/s, links at %.0f GB/s in a node and %.2f GB/s between nodes\n",
             100 * profile["products_of_peak"].get<double>(),
             profile["memory_bytes_per_s"].get<double>() * 1e-9,
             profile["node_bytes_per_s"].get<double>() * 1e-9,
             profile["network_bytes_per_s"].get<double>() * 1e-9);
}

// The largest share of a case by which twice a budget makes the step longer.
std::string most_with_more(const json& shares) {
  double most = -1;
  for (const json& share : shares) {
    if (share.is_null()) return "no plan";
    most = std::max(most, share.get<double>());
  }
  return formatted("%+.1f%%", 100 * most);
}

std::string held_out_table(const json& figures) {
  std::string text =
      formatted("%4s %10s %10s %7s %8s %7s %7s %5s  %s\n", "case", "auto s", "best s", "excess",
                "more", "CPU s", "worst", "fits", "device, pinned; machine; model");
  int number = 0;
  for (const json& row : figures["cases"]) {
    const auto figure = [&](const char* key) { return row[key].get<double>(); };
    text += formatted("%4d %10.4g %10.4g %6.2f%% %8s %7.2f %7.2f %5d  ", ++number, figure("step_s"),
                      figure("best_s"), 100 * figure("excess"),
                      most_with_more(row["more_memory"]).c_str(), figure("cpu_s"),
                      figure("complete_worst_cpu_s"), row["fits"].get<int>());
    text += format_bytes(row["device_bytes"].get<std::uint64_t>()) + ", " +
            format_bytes(row["pinned_bytes"].get<std::uint64_t>()) + "; " +
            row["machine"].get<std::string>() + "; " + row["model"].get<std::string>() +
            "; best: " + row["best_by"].get<std::string>() + "\n";
    for (const json& failure : row["failures"]) {
      text += "     " + failure["error"].get<std::string>() + ": " +
              failure["machine"].get<std::string>() + "; " +
              failure["settings"].get<std::string>() + "\n";
    }
  }
  text += formatted(
      "\nseed %llu, %d settings by hand: auto is within 1%% of the best known plan in %d of %d "
      "cases;\nexcess: worst %.2f%%, median %.2f%%; ",
      figures["seed"].get<unsigned long long>(), figures["settings"].get<int>(),
      figures["within"].get<int>(), number, 100 * figures["worst_excess"].get<double>(),
      100 * figures["median_excess"].get<double>());
  text += formatted(
      "slower with twice a budget: %d; refused and drawn again: %d; internal errors: %d\n",
      figures["slower_with_more"].get<int>(), figures["refused"].get<int>(),
      figures["failures"].get<int>());
  return text + formatted(
                    "CPU s of auto: worst %.2f, median %.2f; of a complete setting: worst %.2f\n"
                    "\nmore: the change of the step with twice a budget, the worst of three;\n"
                    "worst: CPU s of a complete setting; fits: settings with a plan that fits\n",
                    figures["worst_cpu_s"].get<double>(), figures["median_cpu_s"].get<double>(),
                    figures["complete_worst_cpu_s"].get<double>());
}

std::string plan_table(const json& figures) {
  std::string checks;
  if (figures.contains("held_out")) checks += held_out_table(figures["held_out"]);
  if (figures.contains("worlds")) checks += world_plans_table(figures["worlds"]);
  if (figures.contains("quality")) checks += plan_quality_table(figures["quality"]);
  if (figures.contains("small")) checks += small_plans_table(figures["small"]);
  if (figures.contains("ranks")) checks += rank_plans_table(figures["ranks"]);
  if (!figures.contains("cases")) return checks;
  std::string text = formatted("%-36s %8s %8s %10s %10s %9s\n", "case", "CPU s", "outcome",
                               "step s", "bound s", "tokens/s");
  for (const json& of : figures["cases"]) {
    text +=
        formatted("%-36s %8.2f %8s", of["case"].get_ref<const std::string&>().c_str(),
                  of["cpu_s"].get<double>(), of["outcome"].get_ref<const std::string&>().c_str());
    if (of.contains("step_s")) {
      text += formatted(" %10.2f %10.2f %9.0f", of["step_s"].get<double>(),
                        of["bound_s"].get<double>(), of["tokens_per_s"].get<double>());
    }
    text += '\n';
  }
  if (!figures.contains("shapes")) return text;
  const json& shapes = figures["shapes"];
  text += formatted("\n%d random shapes, %d of them fit: median %.2f CPU s, worst %.2f\n",
                    shapes["count"].get<int>(), shapes["fits"].get<int>(),
                    shapes["median_cpu_s"].get<double>(), shapes["worst_cpu_s"].get<double>());
  if (shapes.contains("median_gap")) {
    text += formatted("plans take %.1f%% more than their bound (median)\n",
                      100 * shapes["median_gap"].get<double>());
  }
  return text;
}

std::string pipelines_table(const json& figures) {
  const auto number = [&](const char* key) { return figures[key].get<long long>(); };
  std::string text = formatted(
      "%lld ranks, %lld micro-batches; a stage's passes take %lld forward, %lld input, %lld "
      "weight\n\n",
      number("ranks"), number("microbatches"), number("forward"), number("backward_input"),
      number("backward_weight"));
  text += formatted("%-14s %6s %8s %12s %9s %6s  %s\n", "order", "stages", "bubble", "closed form",
                    "makespan", "sums", "in flight, by rank");
  for (const json& of : figures["orders"]) {
    const std::string closed = of["closed_bubble"].is_null() ? "-" : json_text(of["closed_bubble"]);
    text += of["order"].get<std::string>();
    text.append(text.size() - text.rfind('\n') < 16 ? 16 - (text.size() - text.rfind('\n')) : 1,
                ' ');
    text +=
        formatted("%6d %8lld %12s %9lld %6s  ", of["stages"].get<int>(),
                  of["bubble"].get<long long>(), closed.c_str(), of["makespan"].get<long long>(),
                  of["sums_in_order"].get<bool>() ? "exact" : "other");
    text += json_text(of["in_flight"]) + "\n";
    if (of.contains("csv")) text += "\n" + of["csv"].get<std::string>();
  }
  return text +
         "\nbubble: a rank's last end - first begin - work, the largest of all ranks"
         "\nin flight: forward passes of a rank's stages that wait for their backward passes"
         "\nsums: exact if gradients are summed in the order of micro-batches, as one rank does\n";
}

std::string products_table(const json& figures) {
  const bool peer = figures.contains("peer");
  std::string text = formatted("%s (%s, %s), %s, %lld tokens, hidden %lld, median of %d rounds\n\n",
                               figures["device"].get_ref<const std::string&>().c_str(),
                               figures["backend"].get_ref<const std::string&>().c_str(),
                               figures["arithmetic"].get_ref<const std::string&>().c_str(),
                               figures["dtype"].get_ref<const std::string&>().c_str(),
                               figures["tokens"].get<long long>(),
                               figures["hidden"].get<long long>(), figures["rounds"].get<int>()) +
                     formatted("%-16s %10s", "", "TFLOP/s");
  text += peer ? formatted(" %12s %7s\n", "peer", "ratio") : "\n";
  for (const auto& [name, of] : figures["products"].items()) {
    text += formatted("%-16s %10.3f", name.c_str(), of["tflops"].get<double>());
    text += peer ? formatted(" %12.3f %7.2f\n", of["peer_tflops"].get<double>(),
                             of["ratio"].get<double>())
                 : "\n";
  }
  return peer ? text + "\npeer: " + figures["peer"].get<std::string>() + "\n" : text;
}

}  // namespace

std::string bench_table(const json& event) {
  const json& figures = event["figures"];
  if (event["name"] == "adam") return adam_table(figures);
  if (event["name"] == "allocator") return allocator_table(figures);
  if (event["name"] == "step") return step_table(figures);
  if (event["name"] == "copy") return copy_table(figures);
  if (event["name"] == "pipelines") return pipelines_table(figures);
  if (event["name"] == "plan") return plan_table(figures);
  if (event["name"] == "gemm" || event["name"] == "attention") return products_table(figures);
  return storage_table(figures);
}

}  // namespace sluice::bench
