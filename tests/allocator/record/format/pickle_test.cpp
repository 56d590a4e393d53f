#include "allocator/record/format/pickle.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "allocator/record/format/pickle_writer.hpp"
#include "base/error.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::record {
namespace {

using std::string_literals::operator""s;

PickleTree parse(const std::string& bytes, const PickleLimits& limits = {}) {
  ByteSource source(bytes, "given.pickle");
  return read_pickle(source, limits);
}

std::string refusal(const std::string& bytes, const PickleLimits& limits = {}) {
  return testing::refusal_of([&] { return parse(bytes, limits); });
}

std::string written(const std::function<void(PickleWriter&)>& write) {
  std::string bytes;
  PickleWriter writer([&](std::string_view part) { bytes += part; });
  write(writer);
  writer.finish();
  return bytes;
}

std::optional<std::int64_t> signed_value(const PickleTree& tree, PickleValue value) {
  const auto bits = tree.as_bits(value);
  return bits ? std::optional(static_cast<std::int64_t>(*bits)) : std::nullopt;
}

class PythonProtocol : public ::testing::TestWithParam<int> {};

// Python 3.11's pickle.dump wrote the files.
TEST_P(PythonProtocol, ReadsPlainData) {
  const std::string path =
      std::string(SLUICE_TEST_SNAPSHOTS "/protocol") + std::to_string(GetParam()) + ".pickle";
  const PickleTree tree = read_pickle_file(path);
  const auto ints = tree.items(tree.find(tree.root, "ints").value());
  ASSERT_EQ(ints.size(), 13u);
  const std::int64_t expected[] = {0,         255,       256,           -1,       65536,
                                   INT32_MAX, INT32_MIN, 1099511627776, INT64_MIN};
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(signed_value(tree, ints[i]), expected[i]) << i;
  }
  EXPECT_EQ(tree.as_bits(ints[9]), std::uint64_t{1} << 63);
  EXPECT_EQ(tree.as_bits(ints[10]), UINT64_MAX);
  for (const std::size_t wide : {11u, 12u}) {  // 2^70 and -2^70
    EXPECT_EQ(ints[wide].kind(), PickleKind::kFloat);
    EXPECT_EQ(tree.as_bits(ints[wide]), std::nullopt);
  }
  const auto scalars = tree.items(tree.find(tree.root, "tuple").value());
  ASSERT_EQ(scalars.size(), 5u);
  EXPECT_EQ(scalars[0].kind(), PickleKind::kNone);
  EXPECT_EQ(scalars[1].kind(), PickleKind::kBool);
  EXPECT_EQ(signed_value(tree, scalars[1]), 1);
  EXPECT_EQ(signed_value(tree, scalars[2]), 0);
  EXPECT_EQ(scalars[3].kind(), PickleKind::kFloat);
  EXPECT_EQ(scalars[4].kind(), PickleKind::kFloat);
  EXPECT_EQ(tree.text(tree.find(tree.root, "text").value()), "\u00e9\n\\\"\u4e2d");
  EXPECT_EQ(tree.text(tree.find(tree.root, "long").value()), std::string(300, 'y'));
  const auto shared = tree.items(tree.find(tree.root, "shared").value());
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_EQ(shared[0].id(), shared[1].id());
  EXPECT_EQ(tree.items(tree.find(tree.root, "empty").value()).size(), 3u);
  EXPECT_FALSE(tree.find(tree.root, "five"));
  if (GetParam() >= 3) {
    EXPECT_EQ(tree.text(tree.find(tree.root, "bytes").value()), "\0\xff"s);
  }
  if (GetParam() >= 4) {
    EXPECT_EQ(tree.find(tree.root, "set")->kind(), PickleKind::kSet);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PythonProtocol, ::testing::Range(0, 6));

TEST(Pickle, RefusesInstructionsThatRunCode) {
  const std::string cases[] = {"cos\nsystem\n",
                               "\x8c\x02os\x8c\x06system\x93",
                               "]]R",
                               "]]b",
                               "(ios\nsystem\n",
                               "(]o",
                               "]]\x81",
                               "\x82\x01",
                               "\x83\x01\x02",
                               "\x84\x01\x02\x03\x04",
                               "]]]\x92",
                               "Pid\n",
                               "]Q"};
  for (const std::string& bytes : cases) {
    const std::string message = refusal("\x80\x04" + bytes + ".");
    EXPECT_TRUE(testing::mentions(message, "asks for a class or a call")) << bytes;
  }
}

TEST(Pickle, NamesTheByteOfAnError) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "byte 0: ends before its STOP"},
      {"]", "byte 1: ends before its STOP"},
      {".", "takes a value from an empty stack"},
      {"\x80\x06]."s, "byte 0: is of protocol 6"},
      {"]h\x01.", "byte 1: recalls memo entry 1"},
      {"]r\xff\xff\xff\x7f.", "numbers a memo entry above"},
      {"]e.", "goes back to a mark"},
      {"}(Ne.", "adds items of a list to a dict"},
      {"(Ne.", "adds items to nothing"},
      {"}(K\x01u.", "a key without a value"},
      {"}(]Nu.", "a key of a dict must not be a list"},
      {"(a.", "takes a value from an empty stack"},
      {"]K\x01\x86\x86.", "takes a value from an empty stack"},
      {"I12x\n.", "must be a number"},
      {"X\xff\xff\xff\xff"s + "abc", "is cut short"},
      {"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"s + "abc", "is cut short"},
      {"\xff", "instruction 255 is unknown"},
      {"Sabc\n.", "a string must be in quotes"},
  };
  testing::expect_refusals(cases, "given.pickle",
                           [](const std::string& bytes) { return refusal(bytes); });
}

TEST(Pickle, RefusesAPickleThatIsCutAnywhere) {
  const std::string whole = written([](PickleWriter& writer) {
    writer.begin_dict();
    writer.text("key");
    writer.begin_list();
    for (const std::int64_t value : {1, 300, 70000, -5}) writer.integer(value);
    writer.integer(INT64_MAX);
    writer.real(0.5);
    writer.pair_of(3, 4);
    writer.text(std::string(1000, 'x'));
    writer.end_list();
    writer.end_dict();
  });
  EXPECT_EQ(refusal(whole), "");
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_NE(refusal(whole.substr(0, bytes)), "") << bytes;
  }
}

TEST(Pickle, SharingCannotBlowUp) {
  // Sixty lists, each with ten times the list before. Copies would have 10^60 items.
  std::string bytes = "]q\x01";
  for (int level = 0; level < 60; ++level) {
    bytes += "(";
    for (int i = 0; i < 10; ++i) bytes += "h\x01";
    bytes += "lq\x01";
  }
  const PickleTree tree = parse(bytes + ".");
  EXPECT_EQ(tree.items(tree.root).size(), 10u);
  EXPECT_LT(tree.held_bytes(), 1u << 20);
}

TEST(Pickle, AListMayHoldItself) {
  const PickleTree tree = parse("]q\x01h\x01"s + "a.");
  EXPECT_EQ(tree.items(tree.root)[0].id(), tree.root.id());
}

TEST(Pickle, NestingTakesNoStack) {
  const std::size_t levels = 1'000'000;
  const PickleTree tree = parse(std::string(levels, ']') + std::string(levels - 1, 'a') + ".");
  std::size_t depth = 1;
  PickleValue list = tree.root;
  for (; !tree.items(list).empty(); ++depth) list = tree.items(list)[0];
  EXPECT_EQ(depth, levels);
}

TEST(Pickle, MemoryHasALimit) {
  const std::string bytes = std::string(100'000, ']') + ".";
  EXPECT_TRUE(testing::mentions(refusal(bytes, {.max_tree_bytes = 1 << 20}),
                                "most that is given to one pickle"));
  EXPECT_EQ(refusal(bytes), "");
}

TEST(Pickle, ListsThatGrowInTurnsStaySeparate) {
  // Two lists grow in turns, so neither has room after it.
  std::string bytes = "]q\x01]q\x02";
  for (int i = 0; i < 1000; ++i) bytes += "h\x01K\x05"s + "a0h\x02K\x06"s + "a0";
  const PickleTree tree = parse(bytes + "\x86.");
  const auto lists = tree.items(tree.root);
  for (const std::size_t l : {0u, 1u}) {
    const auto items = tree.items(lists[l]);
    ASSERT_EQ(items.size(), 1000u);
    for (const PickleValue item : items) EXPECT_EQ(signed_value(tree, item), l == 0 ? 5 : 6);
  }
}

TEST(Pickle, TheLastValueOfARepeatedKeyHolds) {
  const PickleTree tree = parse("}(U\x01"s + "aK\x01U\x01"s + "aK\x02u.");
  EXPECT_EQ(signed_value(tree, *tree.find(tree.root, "a")), 2);
}

TEST(PickleWriter, WritesPicklesThatPythonLoads) {
  const std::string bytes = written([](PickleWriter& writer) {
    writer.begin_dict();
    writer.text("a");
    writer.integer(-1);
    writer.text("b");
    writer.text("a");
    writer.end_dict();
  });
  // pickle.loads of these bytes: {'a': -1, 'b': 'a'}.
  EXPECT_EQ(bytes,
            "\x80\x04\x95\x13\0\0\0\0\0\0\0}(\x8c\x01"s
            "a\x94J\xff\xff\xff\xff\x8c\x01"s
            "b\x94h\0u."s);
}

TEST(PickleWriter, ReadsBackItsOwnPickles) {
  const std::int64_t numbers[] = {0,  255,       256,       65535,     65536,
                                  -1, INT32_MAX, INT32_MIN, 1LL << 31, INT64_MIN};
  const std::string bytes = written([&](PickleWriter& writer) {
    writer.begin_list();
    for (const std::int64_t number : numbers) writer.integer(number);
    writer.begin_list();
    for (int i = 0; i < 2500; ++i) writer.integer(i);
    writer.end_list();
    const std::uint32_t memo = writer.remember();
    writer.recall(memo);
    writer.begin_dict();
    for (int i = 0; i < 2500; ++i) {
      writer.text("key" + std::to_string(i));
      writer.none();
    }
    writer.end_dict();
    writer.text(std::string(200'000, 'z'));
    writer.real(-1.5);
    writer.boolean(true);
    writer.pair_of(1, -2);
    writer.end_list();
  });
  const PickleTree tree = parse(bytes);
  const auto items = tree.items(tree.root);
  ASSERT_EQ(items.size(), std::size(numbers) + 7);
  for (std::size_t i = 0; i < std::size(numbers); ++i) {
    EXPECT_EQ(signed_value(tree, items[i]), numbers[i]);
  }
  const auto rest = items.subspan(std::size(numbers));
  ASSERT_EQ(tree.items(rest[0]).size(), 2500u);
  EXPECT_EQ(signed_value(tree, tree.items(rest[0])[2499]), 2499);
  EXPECT_EQ(rest[0].id(), rest[1].id());
  EXPECT_EQ(tree.items(rest[2]).size(), 5000u);
  EXPECT_EQ(tree.find(rest[2], "key2499")->kind(), PickleKind::kNone);
  EXPECT_EQ(tree.text(rest[3]).size(), 200'000u);
  EXPECT_EQ(rest[4].kind(), PickleKind::kFloat);
  EXPECT_EQ(signed_value(tree, rest[5]), 1);
  EXPECT_EQ(rest[6].kind(), PickleKind::kTuple);
  EXPECT_EQ(signed_value(tree, tree.items(rest[6])[1]), -2);
}

TEST(PickleWriter, CallsOutOfOrderAreRefused) {
  const auto sink = [](std::string_view) {};
  PickleWriter open(sink);
  open.begin_list();
  EXPECT_THROW(open.finish(), InternalError);
  EXPECT_THROW(open.end_dict(), InternalError);
  PickleWriter twice(sink);
  twice.none();
  EXPECT_THROW(twice.none(), InternalError);
  PickleWriter odd(sink);
  odd.begin_dict();
  odd.text("key");
  EXPECT_THROW(odd.end_dict(), InternalError);
}

}  // namespace
}  // namespace sluice::record
