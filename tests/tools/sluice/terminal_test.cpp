// Output on a terminal: no line is longer than its width, and a progress line that is rewritten
// stays one line. Output that is no terminal is not wrapped.
#include "tools/sluice/terminal.hpp"

#include "tests/support/terminal_process.hpp"
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

using cli::fit_fields;
using cli::text_columns;
using cli::wrap_text;

TEST(WrapText, BreaksAtWordsUnderTheLabelsText) {
  EXPECT_EQ(wrap_text("plan     one two three four five six\n", 24),
            "plan     one two three\n         four five six\n");
  EXPECT_EQ(wrap_text("sluice: one two three four five six", 20),
            "sluice: one two\n  three four five\n  six");
  EXPECT_EQ(wrap_text("         (one two three four)\n", 22),
            "         (one two\n         three four)\n");
  // Under a table's last column, if that leaves room.
  EXPECT_EQ(wrap_text("w   1   why it is so\n", 14), "w   1   why it\n        is so\n");
  EXPECT_EQ(wrap_text("fits     \n\nfits\n", 20), "fits     \n\nfits\n");
  EXPECT_EQ(wrap_text("any long line stays as it is", 0), "any long line stays as it is");
}

TEST(WrapText, CutsOnlyAWordThatIsLongerThanALine) {
  EXPECT_EQ(wrap_text("weights  /a/very/long/path/to\n", 20),
            "weights  /a/very/lon\n         g/path/to\n");
  EXPECT_EQ(wrap_text(std::string(45, 'x'), 20),
            std::string(20, 'x') + "\n  " + std::string(18, 'x') + "\n  " + std::string(7, 'x'));
}

TEST(WrapText, CountsCharactersAndNotBytes) {
  EXPECT_EQ(text_columns("12 µs"), 5u);
  EXPECT_EQ(wrap_text("µµµµ µµµµ µµµµ µµµµ µµµµ", 24), "µµµµ µµµµ µµµµ µµµµ µµµµ");
}

TEST(FitFields, LeavesOutTheLeastImportantOnes) {
  const std::vector<cli::StatusField> fields{{"step 1", 9}, {"lr 1", 1}, {"loss 2", 8}};
  EXPECT_EQ(fit_fields(fields, 0), "step 1  lr 1  loss 2");
  EXPECT_EQ(fit_fields(fields, 21), "step 1  lr 1  loss 2");
  EXPECT_EQ(fit_fields(fields, 20), "step 1  loss 2");
  EXPECT_EQ(fit_fields(fields, 3), "step 1");
}

// The rows of a terminal that shows the text: "\r\033[K" begins the current row anew.
std::vector<std::string> rows_of(const std::string& text) {
  std::vector<std::string> rows{""};
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text.compare(at, 4, "\r\033[K") == 0) {
      rows.back().clear();
      at += 3;
    } else if (text[at] == '\n') {
      rows.emplace_back();
    } else {
      rows.back() += text[at];
      // A longer row goes on below, where "\r" no longer reaches its begin.
      EXPECT_LE(text_columns(rows.back()), 80u) << rows.back();
    }
  }
  return rows;
}

class Terminal : public CliTest {
 protected:
  std::vector<std::string> rows(const Words& arguments, int exit_status = 0) const {
    const TerminalOutcome outcome =
        run_on_terminal(Words{SLUICE_PROGRAM} + arguments, path(), environment(), 80, kCliDeadline);
    EXPECT_EQ(outcome.exit_status, exit_status) << outcome.text;
    return rows_of(outcome.text);
  }
};

std::ptrdiff_t count_starts(const std::vector<std::string>& rows, const std::string& start) {
  return std::count_if(rows.begin(), rows.end(),
                       [&](const std::string& row) { return row.starts_with(start); });
}

TEST_F(Terminal, ARunIsReadInEightyColumns) {
  // Long paths and figures: the whole step line would have some 110 columns.
  const std::vector<std::string> run =
      rows({"train", "config.toml", "--set", "train.steps=6", "checkpoint.every=3"});
  EXPECT_EQ(count_starts(run, "step 6/6 (100%)  loss "), 1);
  EXPECT_EQ(count_starts(run, "step "), 1 + 1);  // the line that "saved" ends stays
  EXPECT_EQ(count_starts(run, "weights     run/0001/weights.safetensors"), 1);
  rows({"report", "run"});
  rows({"train", "run", "--steps", "6"});
}

TEST_F(Terminal, AnswersAreWrappedUnderTheirLabels) {
  const std::vector<std::string> plan =
      rows({"plan", "config.toml", "--hardware", "rtx4090-64g-1nvme", "--explain"});
  EXPECT_EQ(count_starts(plan, "plan        "), 1);
  EXPECT_GT(count_starts(plan, "            "), 1);
  EXPECT_FALSE(std::any_of(plan.begin(), plan.end(),
                           [](const std::string& row) { return row.ends_with(" "); }));
  rows({"plan", "config.toml", "--set", "memory.device=1KiB"}, 2);
  rows({"verify", "config.toml", "--steps", "1", "--set", "model.layers=1", "train.accumulate=2",
        "parallel.data=2", "parallel.reduction=ring"});
  rows({"data", "config.toml", "--order", "--steps", "1"});
  // Events keep their lines.
  const TerminalOutcome events = run_on_terminal({SLUICE_PROGRAM, "plan", "config.toml", "--json"},
                                                 path(), environment(), 80, kCliDeadline);
  EXPECT_EQ(std::count(events.text.begin(), events.text.end(), '\n'), 1);
}

TEST_F(Terminal, LaunchWrapsTheLinesOfItsRanks) {
  const std::vector<std::string> run =
      rows({"launch", "-n", "1", "--", "train", "config.toml", "--set", "train.steps=2"});
  EXPECT_EQ(count_starts(run, "[0] done        2 steps"), 1);
  // A step's line stays one: it leaves out fields as that of a run without a launcher.
  EXPECT_EQ(count_starts(run, "[0] step "), 2);
  for (std::size_t at = 0; at < run.size(); ++at) {
    if (!run[at].starts_with("[0] step ")) continue;
    EXPECT_TRUE(holds(run[at], "  loss ")) << run[at];
    EXPECT_TRUE(holds(run[at], "  ETA ")) << run[at];
    EXPECT_TRUE(at + 1 < run.size() && run[at + 1].starts_with("[0] ")) << run[at + 1];
  }
}

TEST_F(Terminal, ColumnsCountsForTerminalsAlone) {
  std::map<std::string, std::string> narrow = environment();
  narrow["COLUMNS"] = "60";
  const TerminalOutcome outcome =
      run_on_terminal({SLUICE_PROGRAM, "plan", "config.toml"}, path(), narrow, 80, kCliDeadline);
  for (const std::string& row : rows_of(outcome.text)) EXPECT_LE(text_columns(row), 60u) << row;
  const ChildOutcome piped = run_shell("COLUMNS=60 exec $SLUICE plan config.toml");
  const std::vector<std::string> lines = lines_of(piped.out);
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(),
                          [](const std::string& line) { return text_columns(line) > 80; }));
}

}  // namespace
}  // namespace sluice::testing
