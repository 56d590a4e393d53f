// replay: traces from a file and from a seed, plots, and refusals.
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

class Replay : public CliTest {};

TEST_F(Replay, AGeneratedTraceIsTheSameFromItsFile) {
  const Json generated = events_of(succeed(
      {"replay", "--generate", "dense", "--seed", "1", "--iterations", "3", "--policy",
       "native,dynamic", "--no-least", "--write", "trace.csv", "--plot", "plot.svg", "--json"}))[0];
  const Json read =
      events_of(succeed({"replay", "trace.csv", "--policy", "native,dynamic", "--json"}))[0];
  EXPECT_EQ(generated.at("event"), "replay");
  EXPECT_EQ(read.at("operations"), generated.at("operations"));
  EXPECT_EQ(read.at("peak_live_bytes"), generated.at("peak_live_bytes"));
  ASSERT_EQ(read.at("policies").size(), 2u);
  for (std::size_t p = 0; p < 2; ++p) {
    EXPECT_EQ(read["policies"][p]["peak_reserved_bytes"],
              generated["policies"][p]["peak_reserved_bytes"]);
    EXPECT_FALSE(generated["policies"][p].contains("least_capacity_bytes"));
    EXPECT_GE(read["policies"][p]["least_capacity_bytes"], read["peak_live_bytes"]);
  }
  // Two policies, one file, under the name that was given.
  const std::string plot = read_file(path("plot.svg"));
  EXPECT_TRUE(plot.ends_with("</svg>\n"));
  for (const char* title : {"dense seed 1, native", "dense seed 1, dynamic"}) {
    EXPECT_TRUE(holds(plot, title));
  }
  const std::filesystem::directory_iterator files(path());
  EXPECT_EQ(std::count_if(begin(files), end(files),
                          [](const auto& file) { return file.path().extension() == ".svg"; }),
            1);
}

TEST_F(Replay, ATraceThatDoesNotFitIsExplained) {
  const std::vector<Json> events =
      events_of(succeed({"replay", "--generate", "dense", "--iterations", "2", "--policy",
                         "dynamic", "--no-least", "--capacity", "4GiB", "--json"}));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_FALSE(events[0]["policies"][0]["fits"].get<bool>());
  EXPECT_EQ(events[1].at("event"), "out_of_memory");
}

TEST_F(Replay, ReportNamesTheCommandForARecordOfMemory) {
  write_file(path("rmm.csv"),
             "Thread,Time,Action,Pointer,Size,Stream\n"
             "1,15:47:02.841961,allocate,0x10012400000,1073741824,0\n"
             "1,15:47:02.842100,allocate failure,0x0,21474836480,0\n");
  for (const char* const format : {"html", "perfetto"}) {
    expect_refused({"report", "rmm.csv", "--format", format}, {"rmm.csv", "sluice replay"});
  }
  const std::string text = succeed({"replay", "rmm.csv", "--capacity", "8GiB", "--no-least"}).out;
  EXPECT_TRUE(holds(text, "the record refused 1 request"));
  EXPECT_TRUE(holds(text, "too large"));
  EXPECT_FALSE(holds(text, "   fits"));
  EXPECT_TRUE(holds(text, "out of device memory: 20.0 GiB asked"));
}

TEST_F(Replay, RefusesWithOneSentence) {
  write_file(path("garbage.bin"), std::string(100, '\x01'));
  write_file(path("empty.csv"), "");
  expect_refused({"replay"}, {"TRACE", "--generate"});
  expect_refused({"replay", "--generate", "gpt"}, {"gpt", "zero3"});
  expect_refused({"replay", "--generate", "dense", "--policy", "jemalloc"},
                 {"jemalloc", "native, expandable, dynamic, planned"});
  expect_refused({"replay", "missing.csv"}, {"missing.csv"});
  expect_refused({"replay", "garbage.bin"}, {"garbage.bin"});
  expect_refused({"replay", "empty.csv"}, {"empty.csv"});
  expect_refused({"replay", "--generate", "dense", "--capacity", "much"}, {"--capacity", "much"});
}

}  // namespace
}  // namespace sluice::testing
