#include "engine/data/dataset.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::data {
namespace {

std::string llmc_file(std::int32_t magic, std::int32_t version, std::int32_t count,
                      const std::vector<std::uint32_t>& tokens, std::size_t width) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  std::string text(reinterpret_cast<const char*>(header.data()), 1024);
  for (const std::uint32_t token : tokens) {
    text.append(reinterpret_cast<const char*>(&token), width);
  }
  return text;
}

std::string tokens_as_text(const TokenStream& stream) {
  std::vector<std::int32_t> tokens(stream.token_count());
  stream.read(0, tokens);
  return {tokens.begin(), tokens.end()};
}

std::string refusal(const std::vector<std::string>& paths,
                    config::DataFormat format = config::DataFormat::kBytes,
                    std::int64_t vocab = 256) {
  return testing::message_of<InputError>([&] { TokenStream(paths, format, vocab); });
}

using testing::holds;

TEST(TokenStream, ADirectoryIsItsVisibleTextFilesInOrderWithAZeroBetween) {
  const testing::ScratchDirectory scratch;
  scratch.write("text/b.txt", "bee");
  scratch.write("text/a/deep/x", "deep");
  scratch.write("text/.git/config", "hidden");
  scratch.write("text/.hidden", "hidden");
  scratch.write("text/empty", "");
  scratch.write("text/program", std::string("ELF\0\1", 5));
  std::filesystem::create_symlink(scratch / "text/b.txt", scratch / "text/link");
  const TokenStream stream({scratch / "text"}, config::DataFormat::kBytes, 256);
  EXPECT_EQ(tokens_as_text(stream), std::string("deep\0bee", 8));
  EXPECT_EQ(stream.file_count(), 2u);
  // A file given by its name is read even if it is no text.
  const TokenStream named({scratch / "text/program", scratch / "text/b.txt"},
                          config::DataFormat::kBytes, 256);
  EXPECT_EQ(tokens_as_text(named), std::string("ELF\0\1\0bee", 9));
}

TEST(TokenStream, EveryRangeEqualsThatPartOfTheStream) {
  const testing::ScratchDirectory scratch;
  std::string whole;
  for (int i = 0; i < 9; ++i) {
    const std::string text(static_cast<std::size_t>(1 + i * 7 % 5), static_cast<char>('a' + i));
    scratch.write(std::to_string(i), text);
    whole += (i > 0 ? std::string(1, '\0') : std::string()) + text;
  }
  const TokenStream stream({scratch.path()}, config::DataFormat::kBytes, 256);
  ASSERT_EQ(tokens_as_text(stream), whole);
  for (std::size_t first = 0; first <= whole.size(); ++first) {
    for (std::size_t count = 0; first + count <= whole.size(); ++count) {
      std::vector<std::int32_t> tokens(count);
      stream.read(first, tokens);
      EXPECT_EQ(std::string(tokens.begin(), tokens.end()), whole.substr(first, count));
    }
  }
  std::vector<std::int32_t> beyond(2);
  EXPECT_THROW(stream.read(whole.size() - 1, beyond), InternalError);
}

TEST(TokenStream, BytesAboveTheVocabularyAreNamed) {
  const testing::ScratchDirectory scratch;
  const auto path = scratch.write("t", "abc\xff");
  EXPECT_EQ(refusal({path}, config::DataFormat::kBytes, 128),
            path + ": token 255 at position 3 is not below model.vocab, 128");
}

TEST(TokenStream, ReadsBothVersionsOfLlmcFiles) {
  const testing::ScratchDirectory scratch;
  const auto v1 = scratch.write("1.bin", llmc_file(20240520, 1, 3, {1, 2, 50256}, 2));
  const auto v7 = scratch.write("7.bin", llmc_file(20240801, 7, 2, {100000, 5}, 4));
  scratch.write("readme.txt", "passed over");
  std::vector<std::int32_t> tokens(5);
  const TokenStream stream({scratch.path()}, config::DataFormat::kLlmc, 128256);
  ASSERT_EQ(stream.token_count(), 5u);
  stream.read(0, tokens);
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{1, 2, 50256, 100000, 5}));
}

TEST(TokenStream, BrokenLlmcFilesAreRefusedWithTheirFigures) {
  const testing::ScratchDirectory scratch;
  const auto write = [&](const std::string& text) { return scratch.write("x.bin", text); };
  const auto words = [&](const std::string& text, std::int64_t vocab = 50257) {
    return refusal({write(text)}, config::DataFormat::kLlmc, vocab);
  };
  const std::string good = llmc_file(20240520, 1, 3, {1, 2, 3}, 2);
  EXPECT_EQ(
      words(good.substr(0, 1029)),
      scratch / "x.bin" + " is truncated: it has 1029 bytes; its header's 3 tokens need 1030");
  EXPECT_TRUE(holds(words(good + "x"), "too long: it has 1031"));
  EXPECT_TRUE(holds(words(good.substr(0, 100)), "has 100 bytes"));
  EXPECT_TRUE(holds(words(llmc_file(20240520, 7, 3, {1, 2, 3}, 2)), "is not an llm.c token file"));
  EXPECT_TRUE(holds(words(llmc_file(20240520, 1, -1, {}, 2)), "counts -1"));
  EXPECT_TRUE(holds(words(llmc_file(20240520, 1, 0, {}, 2)), "holds no tokens"));
  EXPECT_EQ(words(good, 3),
            scratch / "x.bin" + ": token 3 at position 2 is not below model.vocab, 3");
  // A u32 token above 2^31 is too large, not negative.
  EXPECT_TRUE(holds(words(llmc_file(20240801, 7, 1, {0xfffffff0u}, 4)), "token 4294967280"));
}

TEST(TokenStream, MissingAndEmptyDataAreRefused) {
  const testing::ScratchDirectory scratch;
  EXPECT_EQ(refusal({scratch / "nowhere"}),
            "data.paths: '" + scratch / "nowhere" + "' does not exist");
  EXPECT_TRUE(holds(refusal({}), "data.paths is empty"));
  EXPECT_TRUE(holds(refusal({scratch.path()}), "holds no text"));
  EXPECT_TRUE(holds(refusal({scratch.write("empty", "")}), "holds no text"));
  EXPECT_TRUE(holds(refusal({"/dev/null"}), "cannot be read"));
  EXPECT_TRUE(holds(refusal({scratch.path()}, config::DataFormat::kMegatron), "not available"));
}

TEST(TokenStream, AFileThatShrinksIsAnIoErrorNotACrash) {
  const testing::ScratchDirectory scratch;
  const auto path = scratch.write("t", std::string(10000, 'a'));
  const TokenStream stream({path}, config::DataFormat::kBytes, 256);
  scratch.write("t", "short");
  std::vector<std::int32_t> tokens(100);
  EXPECT_THROW(stream.read(9000, tokens), IoError);
}

TEST(SampleOrder, EveryEpochIsAPermutationOfItsOwn) {
  for (const std::uint64_t count : {1u, 2u, 3u, 5u, 16u, 17u, 1000u}) {
    const SampleOrder order(7, count);
    std::set<std::vector<std::uint64_t>> epochs;
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::uint64_t> windows;
      for (std::uint64_t i = 0; i < count; ++i)
        windows.push_back(order.window_of(epoch * count + i));
      EXPECT_EQ(std::set(windows.begin(), windows.end()).size(), count);
      EXPECT_LT(*std::max_element(windows.begin(), windows.end()), count);
      epochs.insert(windows);
    }
    if (count >= 16) {
      EXPECT_EQ(epochs.size(), 3u) << count;
    }
  }
}

TEST(SampleOrder, DiffersBySeedAndIsNotTheStreamsOrder) {
  const SampleOrder one(1, 1000);
  const SampleOrder two(2, 1000);
  int same = 0;
  int in_place = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    same += one.window_of(i) == two.window_of(i) ? 1 : 0;
    in_place += one.window_of(i) == i ? 1 : 0;
  }
  // Each is 1 on average for independent random permutations.
  EXPECT_LT(same, 10);
  EXPECT_LT(in_place, 10);
}

TEST(SampleOrder, HoldsForHugeCounts) {
  const std::uint64_t count = (std::uint64_t{1} << 61) + 12345;
  const SampleOrder order(1, count);
  std::set<std::uint64_t> windows;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::uint64_t window = order.window_of(i);
    EXPECT_LT(window, count);
    windows.insert(window);
  }
  EXPECT_EQ(windows.size(), 1000u);
}

DatasetOptions options_for(const std::string& path) {
  DatasetOptions options;
  options.paths = {path};
  options.seq = 4;
  options.micro_batch = 3;
  options.accumulate = 2;
  options.seed = 5;
  return options;
}

std::string counting_text(std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 251);
  return text;
}

TEST(Dataset, OneEpochVisitsEveryWindowOnceWithShiftedTargets) {
  const testing::ScratchDirectory scratch;
  const Dataset data(options_for(scratch.write("t", counting_text(4 * 60 + 1 + 3))));
  ASSERT_EQ(data.train_windows(), 60u);
  std::set<std::int32_t> starts;
  std::vector<std::int32_t> tokens(12), targets(12);
  for (std::int64_t step = 0; step < 10; ++step) {
    for (std::int64_t microbatch = 0; microbatch < 2; ++microbatch) {
      data.fill(step, microbatch, tokens.data(), targets.data());
      for (std::size_t i = 0; i < 12; ++i) {
        EXPECT_EQ(targets[i], (tokens[i] + 1) % 251);
        if (i % 4 != 3) {
          EXPECT_EQ(targets[i], tokens[i + 1]);
        }
      }
      for (std::size_t i = 0; i < 12; i += 4) starts.insert(tokens[i]);
    }
  }
  EXPECT_EQ(starts.size(), 60u);
}

TEST(Dataset, EvaluationTakesTheLastPartAndTrainingNeverSeesIt) {
  const testing::ScratchDirectory scratch;
  auto options = options_for(scratch.write("t", std::string(90, 'a') + std::string(30, 'z')));
  options.eval_fraction = 0.25;
  const Dataset data(options);
  EXPECT_EQ(data.train_windows(), 22u);  // 89 / 4
  EXPECT_EQ(data.eval_windows(), 7u);    // 29 / 4
  EXPECT_EQ(data.eval_batches(), 2);
  std::vector<std::int32_t> tokens(12), targets(12);
  for (std::int64_t i = 0; i < data.eval_batches(); ++i) {
    data.fill_eval(i, tokens.data(), targets.data());
    EXPECT_EQ(tokens, std::vector<std::int32_t>(12, 'z'));
    EXPECT_EQ(targets, std::vector<std::int32_t>(12, 'z'));
  }
  for (std::int64_t step = 0; step < 20; ++step) {
    data.fill(step, 0, tokens.data(), targets.data());
    EXPECT_EQ(targets, std::vector<std::int32_t>(12, 'a'));
  }
}

TEST(Dataset, AnEvaluationPartBelowOneBatchRepeatsItsWindows) {
  const testing::ScratchDirectory scratch;
  auto options = options_for(scratch.write("t", counting_text(100)));
  options.eval_fraction = 0.1;  // 10 tokens: two windows, batches of three
  const Dataset data(options);
  ASSERT_EQ(data.eval_windows(), 2u);
  ASSERT_EQ(data.eval_batches(), 1);
  std::vector<std::int32_t> tokens(12), targets(12);
  data.fill_eval(0, tokens.data(), targets.data());
  EXPECT_EQ(tokens[0], 90);
  EXPECT_EQ(tokens[4], 94);
  EXPECT_EQ(tokens[8], 90);
}

TEST(Dataset, TooLittleForOneWindowIsRefused) {
  const testing::ScratchDirectory scratch;
  auto options = options_for(scratch.write("t", "1234"));
  const auto refused = [&] { return testing::message_of<InputError>([&] { Dataset{options}; }); };
  EXPECT_EQ(refused(),
            "data.paths: the training part has 4 tokens; train.seq = 4 needs at least 5");
  options.paths = {scratch.write("t", "1234567890")};
  options.eval_fraction = 0.2;
  EXPECT_EQ(refused(),
            "data.eval_fraction: the evaluation part has 2 tokens; train.seq = 4 needs at least 5");
}

}  // namespace
}  // namespace sluice::data
