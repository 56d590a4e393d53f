// --version, --help, --help-config, report, doctor, bench.
#include "engine/config/schema.hpp"
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

class Help : public CliTest {};

TEST_F(Help, VersionAndHelpEndWell) {
  const ChildOutcome version = succeed({"--version"});
  EXPECT_TRUE(version.out.starts_with("sluice 0.")) << version.out;
  for (const char* fact : {"\ninstruction set ", "\nlibraries ", "oneDNN", "liburing", "\nGPUs "}) {
    EXPECT_TRUE(holds(version.out, fact)) << version.out;
  }
  const ChildOutcome help = succeed({"--help"});
  for (const char* command : {"train", "plan", "doctor", "bench", "report"}) {
    EXPECT_TRUE(holds(help.out, command)) << command;
    const ChildOutcome own = succeed({command, "--help"});
    EXPECT_TRUE(holds(own.out, "Usage")) << own.out;
  }
}

TEST_F(Help, NoArgumentsShowTheHelpAndFail) {
  const ChildOutcome outcome = run({});
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_TRUE(holds(outcome.out, "train"));
}

// With the helps of all commands: at most 80 columns.
TEST_F(Help, IsFoundByEachNameAndFitsEightyColumns) {
  std::vector<Words> commands{{}};
  for (const char* name : {"train", "launch", "plan", "data", "verify", "doctor", "bench", "report",
                           "replay", "help", "completion"}) {
    commands.push_back({name});
  }
  for (const char* bench : {"adam", "copy", "storage", "step", "plan", "pipelines", "gemm"}) {
    commands.push_back({"bench", bench});
  }
  for (const Words& command : commands) {
    const std::string own = succeed(command + Words{"--help"}).out;
    EXPECT_EQ(succeed(Words{"help"} + command).out, own);
    for (const std::string& line : lines_of(own)) EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_TRUE(holds(succeed({"plan", "--help"}).out, "\n  rtx4090-64g-1nvme\n"));
  expect_refused({"help", "trian"}, {"did you mean 'sluice train'?"});
  expect_refused({"help", "plan", "extra"}, {"'extra' is a word too many", "'sluice plan'"});
  expect_refused({"help", "bench", "adam", "twice"}, {"'twice' is a word too many"});
}

TEST_F(Help, TheManualPageHasEveryCommandAndItsOptions) {
  const std::string page = succeed({"help", "--man"}).out;
  EXPECT_TRUE(page.starts_with(".TH SLUICE 1"));
  for (const char* text :
       {".SS sluice plan [OPTIONS] CONFIG\n", ".SS sluice bench adam [OPTIONS]\n",
        "\n\\fB\\-\\-hardware\\fR", ".SH EXIT STATUS\n"}) {
    EXPECT_TRUE(holds(page, text)) << text;
  }
}

TEST_F(Help, TheShellCompletesCommandsOptionsKeysAndMachines) {
  const auto completed = [&](const std::string& words) {
    return run_shell("exec /bin/bash -c 'source <($SLUICE completion bash); COMP_WORDS=(" + words +
                     "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); compopt() { :; }; _sluice; "
                     "echo \"${COMPREPLY[@]}\"'")
        .out;
  };
  EXPECT_EQ(completed("sluice tra"), "train\n");
  EXPECT_EQ(completed("sluice bench ad"), "adam\n");
  EXPECT_EQ(completed("sluice plan a.toml --hardware rtx4090-64"), "rtx4090-64g-1nvme\n");
  EXPECT_EQ(completed("sluice train a.toml --set memory.dev"), "memory.device=\n");
  EXPECT_EQ(completed("sluice launch -n 2 -- train --accept"), "--accept-arithmetic\n");
  EXPECT_EQ(completed("sluice report r"), "\n");  // files
  EXPECT_TRUE(succeed({"completion", "zsh"}).out.starts_with("#compdef sluice\n"));
  expect_refused({"completion", "fish"}, {"fish", "bash"});
}

TEST_F(Help, EveryKeyIsListedWithItsMeaning) {
  const ChildOutcome outcome = succeed({"--help-config"});
  for (const config::ConfigKey& key : config::config_schema()) {
    EXPECT_TRUE(holds(outcome.out, "  " + key.path + "\n      " + key.doc)) << key.path;
  }
}

class Report : public CliTest {};

TEST_F(Report, ShowsARealRun) {
  succeed({"train", "config.toml", "--steps", "3"});
  succeed({"report", "run"});
  const std::string page = read_file(path("run/0001/report.html"));
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>") || page.starts_with("<!doctype html>"));
  succeed({"report", "run", "--format", "perfetto", "-o", "trace.json"});
  const Json trace = Json::parse(read_file(path("trace.json")));
  const std::string text = trace.dump();
  for (const char* lane : {"compute", "h2d", "d2h", "storage_read", "storage_write", "optimizer"}) {
    EXPECT_TRUE(holds(page, lane)) << lane;
    EXPECT_TRUE(holds(text, lane)) << lane;
  }
  EXPECT_GT(trace.at("traceEvents").size(), 50u);
}

TEST_F(Report, RefusesMissingAndDamagedFiles) {
  expect_refused({"report", "absent"}, {"absent", "no such directory"});
  fs::create_directory(path("empty"));
  expect_refused({"report", "empty"}, {"empty", "no such file"});
  succeed({"train", "config.toml", "--steps", "1"});
  expect_refused({"report", "run", "--format", "tapestry"}, {"'tapestry'", "perfetto"});
  expect_refused({"report", "run", "-o", "absent/page.html"}, {"absent/page.html"});
}

class Measure : public CliTest {};

TEST_F(Measure, DoctorChecksMeasuresAndSavesTheProfileThatPlanUses) {
  const ChildOutcome outcome = succeed({"doctor", "--json", "--seconds", "0.002"});
  bool measured = false;
  for (const Json& event : events_of(outcome)) {
    EXPECT_EQ(event.at("event"), "doctor");
    EXPECT_EQ(event.at("ok").get<bool>(), !event.contains("fix")) << event;
    measured = measured || (event.at("check") == "measure" && event.at("ok").get<bool>());
  }
  EXPECT_TRUE(measured);
  EXPECT_TRUE(fs::exists(path("cache/sluice/hardware.json")));
  const ChildOutcome own = succeed({"plan", "config.toml", "--json"});
  const ChildOutcome named =
      succeed({"plan", "config.toml", "--json", "--hardware", "cache/sluice/hardware.json"});
  Json own_plan = events_of(own).at(0);
  Json named_plan = events_of(named).at(0);
  own_plan.erase("gpu_missing");  // of a machine that is here
  // A measured profile does not state the size of the storage.
  EXPECT_EQ(own_plan.at("budget_sources").at("storage"), "machine");
  EXPECT_EQ(named_plan.at("budget_sources").at("storage"), "assumed");
  for (Json* plan : {&own_plan, &named_plan}) {
    plan->erase("budget_sources");
    plan->at("budget_bytes").erase("storage");  // the disk may have less room than is assumed
  }
  EXPECT_EQ(own_plan, named_plan);
  fs::remove_all(path("cache"));
  const ChildOutcome standard = succeed({"plan", "config.toml", "--json"});
  EXPECT_NE(own.out, standard.out);  // another step time
}

TEST_F(Measure, BenchesPrintTheirFigures) {
  const auto figures = [&](const Words& arguments) {
    const std::vector<Json> events = events_of(succeed(arguments));
    EXPECT_EQ(events.size(), 1u);
    if (events.size() != 1) return Json::object();
    EXPECT_EQ(events[0].at("event"), "bench");
    EXPECT_EQ(events[0].at("name"), arguments[1]);
    return events[0].at("figures");
  };
  const Json adam = figures({"bench", "adam", "--json", "--elems", "262144", "--threads", "1"});
  const Json& split = adam.at("variants").at("split_block8");
  EXPECT_GT(split.at("params_per_s").get<double>(), 0);
  EXPECT_GT(split.at("traffic_params_per_s").get<double>(), 0);
  const Json storage =
      figures({"bench", "storage", "--json", "--bytes", "64MiB", "--seconds", "0.02", "--block",
               "256KiB", "--depth", "4", "--rounds", "1", "--no-sweep"});
  EXPECT_EQ(storage.at("block_bytes"), 262144);
  EXPECT_EQ(storage.at("depth"), 4);
  EXPECT_EQ(storage.at("rounds"), 1);
  for (const char* mix : {"read", "write", "duplex"}) {
    EXPECT_GT(storage.at(mix + std::string("_gib_per_s")).get<double>(), 0) << mix;
    EXPECT_TRUE(storage.contains(mix + std::string("_cpu_ms_per_gib"))) << mix;
  }
  const ChildOutcome people = succeed({"bench", "adam", "--elems", "262144", "--threads", "1",
                                       "--rounds", "7", "--variants", "split,lion"});
  EXPECT_FALSE(holds(people.out, "8-bit moments"));
  const ChildOutcome table = succeed(
      {"bench", "storage", "--bytes", "96MiB", "--seconds", "0.02", "--rounds", "1", "--no-sweep"});
  for (const char* word : {"bf16 -> bf16, split master", "Lion, bf16 -> bf16", "CPU ms/GiB",
                           "limit: the same bytes", "\nread ", "\nwrite ", "\nduplex "}) {
    EXPECT_TRUE(holds(people.out + table.out, word));
  }
}

}  // namespace
}  // namespace sluice::testing
