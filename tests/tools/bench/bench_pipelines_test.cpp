#include "tools/bench/bench_pipelines.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/support/thrown.hpp"
#include "tools/bench/bench_table.hpp"

namespace sluice::bench {
namespace {

TEST(BenchPipelines, SaysTheBubbleOfEveryOrderBesideItsClosedForm) {
  const nlohmann::json event = run_pipelines_bench({});
  EXPECT_EQ(event.at("name"), "pipelines");
  const nlohmann::json& orders = event.at("figures").at("orders");
  ASSERT_EQ(orders.size(), 7u);
  for (const nlohmann::json& of : orders) {
    EXPECT_EQ(of.at("bubble"), of.at("closed_bubble")) << of.dump();
    EXPECT_EQ(of.at("in_flight"), of.at("closed_in_flight")) << of.dump();
    EXPECT_EQ(of.at("sums_in_order"), true);
    EXPECT_TRUE(testing::mentions(bench_table(event), of.at("order").get<std::string>()));
  }
}

TEST(BenchPipelines, ReadsTheListsThatItWrites) {
  PipelineBenchOptions options;
  options.order = "zb-v";
  const nlohmann::json written = run_pipelines_bench(options).at("figures").at("orders").at(0);
  testing::TempDirectory directory;
  options.file = directory.file("order.csv");
  std::ofstream(options.file) << written.at("csv").get<std::string>();
  const nlohmann::json read = run_pipelines_bench(options).at("figures").at("orders").at(0);
  for (const char* figure : {"stages", "bubble", "makespan", "in_flight", "csv"}) {
    EXPECT_EQ(read.at(figure), written.at(figure)) << figure;
  }
}

TEST(BenchPipelines, RefusesAFileThatHoldsNoOrder) {
  testing::TempDirectory directory;
  PipelineBenchOptions options;
  options.file = directory.file("order.csv");
  const auto refusal = [&](const std::string& text) {
    std::ofstream(options.file) << text;
    return testing::message_of<InputError>([&] { run_pipelines_bench(options); });
  };
  EXPECT_TRUE(testing::mentions(refusal("0F0,0Q0\n"), "'0Q0' is not an action"));
  EXPECT_TRUE(testing::mentions(refusal("0F0,0I0\n"), "no rank lists 0W0"));
  options.file = directory.file("absent.csv");
  EXPECT_TRUE(testing::mentions(
      testing::message_of<InputError>([&] { run_pipelines_bench(options); }), "cannot read"));
  options.file.clear();
  options.order = "1f2b";
  EXPECT_TRUE(testing::mentions(
      testing::message_of<InputError>([&] { run_pipelines_bench(options); }), "1f2b"));
}

}  // namespace
}  // namespace sluice::bench
