#include "tools/report/report.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/tools/report/run_fixture.hpp"
#include "tools/palette/palette.hpp"

namespace sluice::report {
namespace {

using testing::holds;
using testing::RunFixture;
using Json = nlohmann::json;

// The data in the page, from which its script draws.
Json data_of(const std::string& page) {
  const std::string opening = R"(<script id="data" type="application/json">)";
  const auto begin = page.find(opening);
  if (begin == std::string::npos) return {};
  const auto end = page.find("</script>", begin);
  return Json::parse(page.substr(begin + opening.size(), end - begin - opening.size()));
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Expects that both renderers refuse the directory, and returns the message of the InputError.
std::string refusal(const std::filesystem::path& run_dir) {
  EXPECT_THROW(render_perfetto(run_dir), InputError);
  return testing::message_of<InputError>([&] { render_html_report(run_dir); });
}

// The made-up run, whose files a test may replace.
class Report : public ::testing::Test {
 protected:
  Json data() const { return data_of(render_html_report(run_.path())); }
  // Rows of the comparison: what the plan and the run say of a quantity.
  std::map<std::string, std::pair<Json, Json>> comparison() const {
    std::map<std::string, std::pair<Json, Json>> rows;
    const Json compared = data()["comparison"];
    for (const Json& row : compared) rows[row["quantity"]] = {row["plan"], row["run"]};
    return rows;
  }
  const RunFixture run_;
};

TEST_F(Report, PageHoldsTheFactsOfTheRun) {
  const Json data = this->data();
  EXPECT_EQ(data["parameters"], 1000000);
  EXPECT_EQ(data["bound_by"], "storage");
  EXPECT_EQ(data["weights_hash"], "00112233445566778899aabbccddeeff");
  ASSERT_EQ(data["steps"]["loss"].size(), 40u);
  EXPECT_DOUBLE_EQ(data["steps"]["loss"][39].get<double>(), 5.5 - 0.07 * 40);
  EXPECT_EQ(data["evaluations"]["step"], Json({10, 20, 30, 40}));
  EXPECT_EQ(data["memory"][0]["budget"], 8u << 20);
  EXPECT_EQ(data["memory"][2]["budget"], 1u << 30);  // an integer in the config
  // Two units' weights and three activations are the most that the fixture samples at once.
  EXPECT_EQ(data["memory"][0]["run"]["peak"], 2 * (2u << 20) + 3 * 262144);
  // The ledger's peaks are the plan's by construction, so the page shows the measured ones.
  EXPECT_EQ(data["memory"][2]["measured_peak"], 50000000);
  // The last ten steps of the fixture are speculative, and some of them were made twice.
  EXPECT_EQ(data["redone"], Json({{"steps", 3}, {"of", 10}, {"seconds", 0.75}}));
  // The engine's account of the stalls, not a guess from the trace.
  const Json& traced = data["traced_step"];
  EXPECT_EQ(traced["step"], testing::kFixtureTracedStep);
  EXPECT_EQ(traced["commits"], false);
  EXPECT_DOUBLE_EQ(traced["compute_s"].get<double>(), 0.0095);
  EXPECT_DOUBLE_EQ(traced["stalled_s"].get<double>(), 0.0115);
  EXPECT_EQ(traced["by_cause"], Json::parse(R"([{"cause":"hand_over","seconds":0.0062},
                                               {"cause":"storage_read","seconds":0.0053}])"));
}

// Rank 1 waited least for rank 0, so it is the one that was waited for.
TEST_F(Report, ShowsEveryRankAndWhatItWaitedFor) {
  EXPECT_EQ(data()["ranks"], nullptr);
  std::filesystem::create_directory(run_.path() / "rank-1");
  const std::string events =
      R"({"event":"step","step":7,"loss":1,"grad_norm":1,"lr":1,"tokens_per_s":1,)"
      R"("step_time_s":0.021,"stalled_fraction":0.5,"bytes_moved":{},)"
      R"("measured_peak_bytes":{},"stalls":{"compute_s":0.01,"stalled_s":0.011,)"
      R"("by_cause_s":{"comm":0.001,"storage_read":0.01}}})"
      "\n";
  run_.write("rank-1/events.jsonl", events);
  // Left by a run that went on with one rank.
  EXPECT_EQ(data()["ranks"], nullptr);
  Json plan = Json::parse(read_text(run_.path() / "plan.json"));
  plan["ranks"] = 2;
  run_.write("plan.json", plan.dump());
  const Json ranks = data()["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0]["rank"], 0);
  EXPECT_EQ(ranks[0]["waited_s"], 0);
  EXPECT_EQ(ranks[1]["rank"], 1);
  EXPECT_DOUBLE_EQ(ranks[1]["waited_s"].get<double>(), 0.001);
  EXPECT_DOUBLE_EQ(ranks[1]["own_s"].get<double>(), 0.02);
  EXPECT_EQ(ranks[1]["cause"], "storage_read");
  // These are of another step: the two did not wait for each other.
  std::string earlier = events;
  earlier.replace(earlier.find("\"step\":7"), 8, "\"step\":3");
  run_.write("rank-1/events.jsonl", earlier);
  EXPECT_EQ(data()["ranks"], nullptr);
}

// The picture needs every rank's trace of the same step.
TEST_F(Report, DrawsAPipelineOfAllItsRanks) {
  std::filesystem::create_directory(run_.path() / "rank-1");
  run_.write("rank-1/events.jsonl",
             R"({"event":"step","step":7,"loss":1,"grad_norm":1,"lr":1,"tokens_per_s":1,)"
             R"("step_time_s":0.021,"stalled_fraction":0.5,"bytes_moved":{},)"
             R"("measured_peak_bytes":{},"stalls":{"compute_s":0.01,"stalled_s":0.011,)"
             R"("by_cause_s":{"comm":0.001}}})"
             "\n");
  Json plan = Json::parse(read_text(run_.path() / "plan.json"));
  plan["ranks"] = 2;
  run_.write("plan.json", plan.dump());
  TraceRecorder trace;
  testing::record_step(trace, 5000, 1.0);
  run_.write("rank-1/trace.json", trace.to_json());
  EXPECT_EQ(data()["pipeline"], nullptr);  // data-parallel ranks
  plan["pipeline"] = {{"ranks", 2}};
  run_.write("plan.json", plan.dump());
  const Json rows = data()["pipeline"]["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["rank"], 1);
  for (const Json& row : rows) {
    EXPECT_FALSE(row["passes"].empty());
    EXPECT_EQ(row["bubble"].get<std::int64_t>(),
              row["span"].get<std::int64_t>() - row["compute"].get<std::int64_t>());
  }
  std::filesystem::remove(run_.path() / "rank-1/trace.json");
  EXPECT_EQ(data()["pipeline"], nullptr);
}

TEST_F(Report, ComparesPlanWithRun) {
  std::map<std::string, std::pair<Json, Json>> rows = comparison();
  EXPECT_EQ(rows["Moved in one step: upload"], std::pair(Json(8388608), Json(8388608)));
  EXPECT_EQ(rows["Moved in one step: storage write"], std::pair(Json(0), Json(4096)));
  EXPECT_EQ(rows["Peak, measured: storage"], std::pair(Json(50331648), Json(50000000)));
  // The first step took 0.9 s and is not typical.
  EXPECT_EQ(rows["Step time, median after the first"], std::pair(Json(0.02), Json(0.021)));
}

// A durable run with checkpoint.every = 2: its third step commits, and so do all odd ones.
TEST_F(Report, ACommittingStepIsNamedAndNotComparedWithThePlan) {
  std::string events;
  for (int step = 1; step <= 5; ++step) {
    const bool commits = step % 2 == 1 && step > 1;
    events += R"({"event":"step","loss":2.0,"step":)" + std::to_string(step) + R"(,"commits":)" +
              (commits ? "true" : "false") + R"(,"bytes_moved":{"upload":)" +
              (commits ? "999" : "8388608") + "}" +
              (step == 3 ? R"(,"stalls":{"compute_s":1.0,"stalled_s":1.0,"by_cause_s":{}})" : "") +
              "}\n";
  }
  run_.write("events.jsonl", events);
  EXPECT_EQ(data()["traced_step"]["step"], 3);
  EXPECT_EQ(data()["traced_step"]["commits"], true);
  EXPECT_EQ(comparison()["Moved in one step: upload"].second, 8388608);
}

// A storage lane may have more transfers in flight than a screen has room for.
TEST_F(Report, ALaneIsNeverHigherThanSixRows) {
  EXPECT_EQ(data()["run"]["tracks"][0]["row_pixels"], 17.0);
  std::string spans;
  for (int i = 0; i < 40; ++i) {
    spans += (i == 0 ? "" : ",") + ("[0,1," + std::to_string(i) + ",100,0,0,0,1]");
  }
  run_.write("trace.json", R"({"names":["storage_write","StorageWrite"],"spans":[)" + spans +
                               R"(],"counters":[]})");
  const Json lane = data()["run"]["tracks"][0];
  EXPECT_EQ(lane["rows"], 40);
  EXPECT_LE(40 * lane["row_pixels"].get<double>(), 6 * 17 + 1e-9);
}

TEST_F(Report, CategoriesHaveTheColoursOfThePalette) {
  const Json colors = data()["category_colors"];
  ASSERT_EQ(colors.size(), kCategoryCount);
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    const auto category = static_cast<Category>(c);
    EXPECT_EQ(colors[std::string(category_name(category))], palette::category_color(category));
  }
}

TEST_F(Report, PageNeedsNothingBesideIt) {
  const std::string page = render_html_report(run_.path());
  for (const char* outside : {"src=", "href=", "url(", "@import", "fetch(", "XMLHttpRequest"}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  // The only address is the name of the SVG namespace.
  EXPECT_EQ(occurrences(page, "://"), occurrences(page, "http://www.w3.org/2000/svg"));
}

TEST_F(Report, TextFromFilesCannotEndTheScript) {
  const std::string plain = render_html_report(run_.path());
  const std::string hostile = "</script><script>alert(1)</script><!--";
  run_.write("config.toml", "# " + hostile + "\n");
  run_.write("trace.json", R"({"names":["compute",")" + hostile +
                               R"("],"spans":[[0,1,0,5,0,0,0,1]],"counters":[]})");
  const std::string page = render_html_report(run_.path());
  EXPECT_EQ(occurrences(page, "</script>"), occurrences(plain, "</script>"));
  EXPECT_EQ(data_of(page)["config"], "# " + hostile + "\n");
}

TEST_F(Report, NamesTheFileThatIsMissing) {
  for (const char* name : {"config.toml", "plan.json", "events.jsonl", "plan_trace.json"}) {
    const RunFixture fresh;
    std::filesystem::remove(fresh.path() / name);
    EXPECT_TRUE(holds(refusal(fresh.path()), std::string("/") + name + ": no such file"));
  }
  EXPECT_TRUE(holds(refusal("no/such/run"), "no/such/run"));
}

TEST_F(Report, DoesNotWaitOnAPipe) {
  std::filesystem::remove(run_.path() / "trace.json");
  ASSERT_EQ(mkfifo((run_.path() / "trace.json").c_str(), 0600), 0);
  EXPECT_TRUE(holds(refusal(run_.path()), "not a regular file"));
}

TEST_F(Report, RefusesMalformedFiles) {
  const auto trace = [](const std::string& spans, const std::string& counters) {
    return R"({"names":["compute","Forward"],"spans":[)" + spans + R"(],"counters":[)" + counters +
           "]}";
  };
  const std::vector<std::pair<std::string, std::string>> bad{
      {"config.toml", "[memory\n"},
      {"plan.json", ""},
      {"plan.json", "[]"},
      {"plan.json", R"({"peak_bytes":{"device":-1}})"},
      {"plan.json", R"({"peak_bytes":{"device":"64MiB"}})"},
      {"plan.json", R"({"bytes_moved":7})"},
      {"plan.json", R"({"step_time_s":1e999})"},
      {"plan.json", std::string(100000, '[')},
      {"events.jsonl", "{\"event\":\"step\",\"step\":1}\nnot json\n{\"event\":\"done\"}\n"},
      {"events.jsonl", "7\n"},
      {"events.jsonl", "{\"event\":\"step\",\"loss\":1}\n"},
      {"events.jsonl", "{\"event\":\"step\",\"step\":1,\"loss\":\"low\"}\n"},
      {"events.jsonl", "{\"event\":\"step\",\"step\":1,\"commits\":1}\n"},
      {"events.jsonl", "{\"event\":\"step\",\"step\":1,\"stalls\":7}\n"},
      {"events.jsonl", "{\"event\":\"step\",\"step\":1,\"stalls\":{\"by_cause_s\":{\"x\":[]}}}\n"},
      {"trace.json", "{}"},
      {"trace.json", R"({"names":[1],"spans":[],"counters":[]})"},
      {"trace.json", trace("[0,1,0,5,0,0,0]", "")},                       // a value too few
      {"trace.json", trace("[2,1,0,5,0,0,0,1]", "")},                     // no such track
      {"trace.json", trace("[0,-1,0,5,0,0,0,1]", "")},                    // no such name
      {"trace.json", trace("[0,1,5,4,0,0,0,1]", "")},                     // ends before it begins
      {"trace.json", trace("[0,1,0,5,0,0,-1,1]", "")},                    // bytes below zero
      {"trace.json", trace("[0,1,0,5.5,0,0,0,1]", "")},                   // not an integer
      {"trace.json", trace("[0,1,0,18446744073709551615,0,0,0,1]", "")},  // past 2^63
      {"trace.json", trace("[0,1,-9223372036854775807,0,0,0,0,1]", "")},
      {"trace.json", trace("[0,1,0,5,4294967296,0,0,1]", "")},  // unit past 2^31
      {"trace.json", trace("", "[2,0,1.0]")},
      {"trace.json", trace("", "[0,0,\"much\"]")},
      {"plan_trace.json", trace("[0,1,0,5,0,0,0,1]", "").substr(0, 40)},
  };
  for (const auto& [name, text] : bad) {
    const RunFixture fresh;
    fresh.write(name, text);
    const std::string message = refusal(fresh.path());
    EXPECT_TRUE(holds(message, std::string("/") + name + ": ")) << text.substr(0, 80);
    EXPECT_LT(message.size(), 400u);
  }
}

// A run that was killed in its second step: there is no trace, no `done`, and no finite loss; the
// last event is cut.
TEST_F(Report, ReadsARunThatEndedBeforeItsTracedStep) {
  run_.write("events.jsonl",
             "{\"event\":\"step\",\"step\":1,\"loss\":null}\n{\"event\":\"step\",\"st");
  std::filesystem::remove(run_.path() / "trace.json");
  const Json data = this->data();
  EXPECT_EQ(data["steps"]["step"], Json({1}));
  EXPECT_TRUE(data["steps"]["loss"][0].is_null());
  EXPECT_TRUE(data["weights_hash"].is_null());
  EXPECT_EQ(data["run"]["tracks"].size(), 0u);
  EXPECT_TRUE(data["traced_step"].is_null());
  EXPECT_TRUE(data["memory"][0]["measured_peak"].is_null());
  EXPECT_NO_THROW(render_perfetto(run_.path()));
}

// Wherever the last line is cut, the report is that of the lines before it, and says so.
TEST_F(Report, ALastEventThatIsCutIsLeftOutAndTold) {
  const std::string whole = "{\"event\":\"step\",\"step\":1,\"loss\":2.5}\n";
  const std::string last = "{\"event\":\"step\",\"step\":2,\"loss\":1.5}";
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, const std::string& line) { warnings.push_back(line); });
  for (std::size_t bytes = 1; bytes < last.size(); bytes += 5) {
    for (const std::string end : {"", "\n", "\n\n"}) {
      SCOPED_TRACE(last.substr(0, bytes) + end);
      warnings.clear();
      run_.write("events.jsonl", whole + last.substr(0, bytes) + end);
      EXPECT_EQ(data()["steps"]["step"], Json({1}));
      ASSERT_EQ(warnings.size(), 1u);
      EXPECT_TRUE(holds(warnings[0], "events.jsonl' is cut in line 2"));
    }
  }
  warnings.clear();
  run_.write("events.jsonl", whole + last + "\n");
  EXPECT_EQ(data()["steps"]["step"], Json({1, 2}));
  EXPECT_TRUE(warnings.empty());
  set_log_sink({});
}

// Killed after its traced step: the measured peaks are those of that step's event.
TEST_F(Report, ARunWithoutAnEndHasThePeaksOfItsTracedStep) {
  run_.write("events.jsonl",
             R"({"event":"step","step":3,"stalls":{},"measured_peak_bytes":{"device":5}})"
             "\n");
  const Json data = this->data();
  EXPECT_EQ(data["memory"][0]["measured_peak"], 5);
  EXPECT_TRUE(data["memory"][1]["measured_peak"].is_null());
}

TEST(Perfetto, SlicesOfAThreadNeverOverlap) {
  const RunFixture run;
  const Json events = Json::parse(render_perfetto(run.path()))["traceEvents"];
  // (process, thread) to (begin, end) in nanoseconds.
  std::map<std::pair<int, int>, std::vector<std::pair<std::int64_t, std::int64_t>>> slices;
  std::map<std::pair<int, int>, std::string> threads;
  std::size_t counters = 0;
  for (const Json& event : events) {
    const std::pair<int, int> thread{event["pid"], event.value("tid", 0)};
    if (event["ph"] == "X") {
      const auto begin = std::llround(event["ts"].get<double>() * 1000);
      slices[thread].emplace_back(begin, begin + std::llround(event["dur"].get<double>() * 1000));
    } else if (event["ph"] == "M" && event["name"] == "thread_name") {
      threads[thread] = event["args"]["name"];
    } else if (event["ph"] == "C") {
      ++counters;
    }
  }
  std::size_t count = 0;
  for (auto& [thread, list] : slices) {
    EXPECT_TRUE(threads.contains(thread));
    std::sort(list.begin(), list.end());
    EXPECT_GE(list.front().first, 0);
    for (std::size_t i = 1; i < list.size(); ++i) EXPECT_GE(list[i].first, list[i - 1].second);
    count += list.size();
  }
  EXPECT_EQ(count, 2u * 3u * testing::kFixtureUnits);
  EXPECT_EQ(counters, 2u * 4u * testing::kFixtureUnits);
  // Reads overlap two deep, so their lane has a second thread in each process.
  EXPECT_EQ(std::count_if(threads.begin(), threads.end(),
                          [](const auto& entry) { return entry.second == "storage_read (2)"; }),
            2);
}

}  // namespace
}  // namespace sluice::report
