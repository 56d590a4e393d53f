#include "tests/tools/sluice/cli_fixture.hpp"

#include <cstring>
#include <fstream>
#include <sstream>

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

// Master weights and moments on storage: every tier and lane is used. One thread: the tests share
// the machine.
constexpr const char* kConfig = R"([model]
layers = 2
hidden = 64
heads = 2

[data]
paths = ["text.txt"]
eval_fraction = 0.1

[train]
steps = 6
seq = 32
micro_batch = 2
threads = 1

[memory]
device = "64MiB"
pinned = "64MiB"
place.optimizer = "storage"

[log]
dir = "run"
)";

}  // namespace

std::vector<std::string> lines_of(const std::string& text) {
  EXPECT_TRUE(text.empty() || text.back() == '\n') << text;
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<Json> events_of(const ChildOutcome& outcome) {
  std::vector<Json> events;
  for (const std::string& line : lines_of(outcome.out)) {
    const Json event = Json::parse(line, nullptr, false);
    EXPECT_TRUE(event.is_object() && event.contains("event")) << line;
    if (event.is_object()) events.push_back(event);
  }
  return events;
}

std::vector<Json> events_of(const ChildOutcome& outcome, const std::string& kind) {
  std::vector<Json> events = events_of(outcome);
  std::erase_if(events, [&](const Json& event) { return event.value("event", "") != kind; });
  return events;
}

std::map<std::string, double> numbers_of(const Json& event) {
  std::map<std::string, double> numbers;
  const Json flat = event.flatten();
  for (const auto& [path, value] : flat.items()) {
    if (value.is_number()) numbers[path] = value.get<double>();
  }
  return numbers;
}

std::string hash_of(const ChildOutcome& outcome) {
  const std::vector<Json> done = events_of(outcome, "done");
  return done.size() == 1 ? done[0].value("weights_hash", "") : "";
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return text.str();
}

std::string llmc_bytes(const std::vector<std::uint16_t>& tokens) {
  std::array<std::int32_t, 256> header{20240520, 1, static_cast<std::int32_t>(tokens.size())};
  std::string bytes(sizeof(header) + tokens.size() * 2, '\0');
  std::memcpy(bytes.data(), header.data(), sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), tokens.data(), tokens.size() * 2);
  return bytes;
}

CliTest::CliTest() {
  write_file(path("config.toml"), kConfig);
  std::string text;
  for (int i = 0; i < 150; ++i) text += "Line " + std::to_string(i) + " is much like the others.\n";
  write_file(path("text.txt"), text);
}

std::map<std::string, std::string> CliTest::environment() const {
  return {{"XDG_CACHE_HOME", path("cache").string()},
          {"SLUICE", SLUICE_PROGRAM},
          {"PATH", "/nonexistent"}};
}

std::unique_ptr<ChildProcess> CliTest::start_command(const Words& command) const {
  return std::make_unique<ChildProcess>(command, path(), environment());
}

std::unique_ptr<ChildProcess> CliTest::start(const Words& arguments) const {
  return start_command(Words{SLUICE_PROGRAM} + arguments);
}

ChildOutcome CliTest::run_shell(const std::string& line) const {
  return start_command({"/bin/sh", "-c", line})->wait(kCliDeadline);
}

fs::path CliTest::find_file(const std::string& directory, const std::string& name) const {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path(directory))) {
    if (entry.path().filename() == name) found.push_back(entry.path());
  }
  EXPECT_EQ(found.size(), 1u) << name << " below " << directory;
  return found.empty() ? fs::path() : found.front();
}

std::string CliTest::logged_hash(const std::string& directory) const {
  for (const std::string& line : lines_of(read_file(find_file(directory, "events.jsonl")))) {
    const Json event = Json::parse(line, nullptr, false);
    if (event.is_object() && event.value("event", "") == "done") {
      return event.at("weights_hash").get<std::string>();
    }
  }
  ADD_FAILURE() << "the run in " << directory << " is not done";
  return "";
}

ChildOutcome CliTest::run(const Words& arguments) const {
  return start(arguments)->wait(kCliDeadline);
}

ChildOutcome CliTest::succeed(const Words& arguments) const {
  ChildOutcome outcome = run(arguments);
  EXPECT_EQ(outcome.exit_status, 0) << "signal " << outcome.signal << ": " << outcome.err;
  return outcome;
}

Words CliTest::train_words(const Words& settings) {
  const Words train{"train", "config.toml", "--json"};
  return settings.empty() ? train : train + Words{"--set"} + settings;
}

std::unique_ptr<ChildProcess> CliTest::begin_run(const Words& settings) const {
  auto child = start(train_words(Words{kSlowLink, "train.steps=1000"} + settings));
  child->wait_for_output(R"("event":"step")", kCliDeadline);
  return child;
}

ChildOutcome CliTest::end_run(ChildProcess& child, int signal) {
  child.send(signal);
  ChildOutcome outcome = child.wait(kCliDeadline);
  EXPECT_EQ(outcome.exit_status, 128 + signal) << outcome.err;
  return outcome;
}

void CliTest::kill_after(const std::string& event, const Words& arguments) const {
  const auto child = start(arguments);
  child->wait_for_output("\"event\":\"" + event + "\"", kCliDeadline);
  child->send(SIGKILL);
  EXPECT_EQ(child->wait(kCliDeadline).signal, SIGKILL);
}

std::map<std::string, std::string> CliTest::snapshot() const {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path())) {
    const std::string name = entry.path().lexically_relative(path()).string();
    if (entry.is_symlink()) {
      files[name] = "-> " + fs::read_symlink(entry.path()).string();
      continue;
    }
    if (entry.is_directory()) {
      files[name + "/"] = "";
      continue;
    }
    const auto written = entry.last_write_time().time_since_epoch().count();
    files[name] = std::to_string(written) + " " + read_file(entry.path());
  }
  return files;
}

std::string CliTest::expect_refused(const Words& arguments, const Words& words) const {
  const auto before = snapshot();
  const ChildOutcome outcome = run(arguments);
  std::string shown;
  for (const std::string& argument : arguments) shown += argument + " ";
  SCOPED_TRACE(shown + "\nstderr: " + outcome.err);
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_TRUE(snapshot() == before) << "something was created or changed";
  const std::vector<std::string> lines = lines_of(outcome.err);
  EXPECT_EQ(lines.size(), 1u);
  std::string sentence = lines.empty() ? "" : lines.front();
  EXPECT_TRUE(sentence.starts_with("sluice: "));
  for (const std::string& word : words) {
    EXPECT_TRUE(holds(sentence, word));
  }
  const bool json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
  const std::vector<Json> events = events_of(outcome);
  EXPECT_EQ(events.size(), json ? 1u : 0u);
  for (const Json& event : events) {
    if (event["event"] == "refused") continue;  // its own test
    EXPECT_EQ(event["event"], "error");
    EXPECT_EQ(event.value("code", ""), "bad_input");
    EXPECT_EQ("sluice: " + event.value("message", ""), sentence);
  }
  return sentence;
}

}  // namespace sluice::testing
