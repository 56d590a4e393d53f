#include "allocator/record/format/torch_snapshot.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "allocator/record/format/pickle_writer.hpp"
#include "allocator/record/format/torch_frames.hpp"
#include "allocator/record/memory_action_names.hpp"
#include "base/error.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::record {
namespace {

using Write = std::function<void(PickleWriter&)>;

PickleTree tree_of(const Write& write) {
  std::string bytes;
  PickleWriter writer([&](std::string_view part) { bytes += part; });
  write(writer);
  writer.finish();
  ByteSource source(bytes, "given.pickle");
  return read_pickle(source);
}

MemorySnapshot snapshot_of(const Write& write, std::optional<std::int32_t> device = {}) {
  return torch_snapshot(tree_of(write), "given.pickle", device);
}

std::string refusal(const Write& write, std::optional<std::int32_t> device = {}) {
  return testing::refusal_of([&] { return snapshot_of(write, device); });
}

struct Entry {
  std::string key;
  Write value;
};
Write number(std::int64_t value) {
  return [=](PickleWriter& out) { out.integer(value); };
}
Write word(std::string value) {
  return [value = std::move(value)](PickleWriter& out) { out.text(value); };
}
Write dict(std::vector<Entry> entries) {
  return [entries = std::move(entries)](PickleWriter& out) {
    out.begin_dict();
    for (const Entry& entry : entries) {
      out.text(entry.key);
      entry.value(out);
    }
    out.end_dict();
  };
}
Write list(std::vector<Write> items) {
  return [items = std::move(items)](PickleWriter& out) {
    out.begin_list();
    for (const Write& item : items) item(out);
    out.end_list();
  };
}
Write frame(const char* filename, std::int64_t line, const char* name) {
  return dict({{"name", word(name)}, {"filename", word(filename)}, {"line", number(line)}});
}
Write block(std::int64_t bytes, const char* state) {
  return dict({{"size", number(bytes)}, {"state", word(state)}});
}
Write segment(std::int64_t device, std::int64_t address, std::int64_t bytes,
              std::vector<Write> blocks = {}) {
  return dict({{"device", number(device)},
               {"address", number(address)},
               {"total_size", number(bytes)},
               {"blocks", list(std::move(blocks))}});
}
Write event(const char* action, std::int64_t address, std::int64_t bytes) {
  return dict({{"action", word(action)}, {"addr", number(address)}, {"size", number(bytes)}});
}
Write events(std::size_t count) {
  return list(std::vector<Write>(count, event("alloc", 512, 1)));
}
Write snapshot(std::vector<Write> segments, std::vector<Write> traces) {
  return dict(
      {{"segments", list(std::move(segments))}, {"device_traces", list(std::move(traces))}});
}

bool operator==(const MemoryEvent& a, const MemoryEvent& b) {
  return a.action == b.action && a.category == b.category && a.name == b.name &&
         a.stream == b.stream && a.address == b.address && a.bytes == b.bytes &&
         a.time_ns == b.time_ns && a.pool == b.pool;
}

TEST(TorchSnapshot, FilesOfOldVersionsAreRead) {
  // Version 1.13 writes only segments. Blocks have a history of their allocations and no addresses.
  const MemorySnapshot read = snapshot_of(list({dict(
      {{"device", number(0)},
       {"address", number(4096)},
       {"total_size", number(2 << 20)},
       {"segment_type", word("small")},
       {"blocks",
        list({dict({{"size", number(1024)},
                    {"state", word("active_allocated")},
                    {"history", list({dict({{"real_size", number(600)},
                                            {"frames", list({frame("/u/a.py", 3, "f")})}})})}}),
              block(512, "active_awaiting_free"), block(512, "inactive")})}})}));
  ASSERT_EQ(read.segments.size(), 1u);
  const SnapshotSegment& only = read.segments[0];
  EXPECT_TRUE(only.is_small);
  EXPECT_FALSE(only.is_expandable);
  ASSERT_EQ(only.blocks.size(), 4u);
  EXPECT_EQ(only.blocks[0].requested_bytes, 600u);
  EXPECT_EQ(read.names[only.blocks[0].name], "/u/a.py:3 f");
  EXPECT_EQ(only.blocks[1].address, 4096u + 1024u);
  EXPECT_EQ(only.blocks[1].state, BlockState::kPendingFree);
  EXPECT_EQ(only.blocks[1].requested_bytes, 512u);
  EXPECT_EQ(only.blocks[2].state, BlockState::kFree);
  // Memory that no block covers is free.
  EXPECT_EQ(only.blocks[3].bytes, (2u << 20) - 2048u);
  EXPECT_EQ(read.max_split_bytes, UINT64_MAX);
}

TEST(TorchSnapshot, KeysOfNewVersionsAreUsedAndUnknownOnesIgnored) {
  const MemorySnapshot read = snapshot_of(dict(
      {{"segments", list({dict({{"device", number(0)},
                                {"address", number(1 << 21)},
                                {"total_size", number(20 << 20)},
                                {"stream", number(-5)},
                                {"segment_type", word("large")},
                                {"is_expandable", [](PickleWriter& out) { out.boolean(true); }},
                                {"segment_pool_id", [](PickleWriter& out) { out.pair_of(2, 3); }},
                                {"registration_counter", number(1)},
                                {"blocks", list({})}})})},
       {"device_traces",
        list({list({dict({{"action", word("oom")},
                          {"device_free", number(77)},
                          {"size", number(5)},
                          {"time_us", number(12)},
                          {"compile_context", word("N/A")},
                          {"pool_id", [](PickleWriter& out) { out.pair_of(2, 3); }},
                          {"category", word("parameter")}}),
                    dict({{"action", word("alloc")},
                          {"addr", number(1 << 21)},
                          {"size", number(5)},
                          {"pool_id", [](PickleWriter& out) { out.pair_of(0, 9); }}}),
                    event("workspace_snapshot", 1, 2), event("segment_map", 1 << 21, 2 << 20)})})},
       {"external_annotations", list({})},
       {"host_segments", list({dict({{"total_size", number(3 << 20)}, {"device", number(-1)}}),
                               dict({{"total_size", number(4 << 20)}})})},
       {"host_traces", list({event("alloc", 1, 1)})},
       {"allocator_settings",
        dict({{"max_split_size", number(-1)},
              {"expandable_segments", [](PickleWriter& out) { out.boolean(true); }},
              {"roundup_power2_divisions",
               dict({{"1", number(4)}, {"2", number(8)}, {"32768", number(2)}})}})}}));
  ASSERT_EQ(read.segments.size(), 1u);
  EXPECT_EQ(read.segments[0].stream, static_cast<std::uint64_t>(-5));
  EXPECT_EQ(read.segments[0].pool, 1u);  // (2, 3)
  EXPECT_TRUE(read.segments[0].is_expandable);
  ASSERT_EQ(read.events.size(), 3u);
  EXPECT_EQ(read.events[0].pool, 1u);
  EXPECT_EQ(read.events[1].pool, 2u);
  EXPECT_EQ(read.events[2].pool, 0u);
  EXPECT_EQ(read.host_segment_count, 2u);
  EXPECT_EQ(read.host_bytes, 7u << 20);
  EXPECT_EQ(read.events[0].action, MemoryAction::kOutOfMemory);
  EXPECT_EQ(read.events[0].address, 77u);
  EXPECT_EQ(read.events[0].time_ns, 12'000);
  EXPECT_EQ(read.events[0].category, Category::kWeight);
  EXPECT_EQ(read.events[2].action, MemoryAction::kSegmentMap);
  EXPECT_TRUE(read.expandable_segments);
  EXPECT_EQ(read.max_split_bytes, UINT64_MAX);
  ASSERT_EQ(read.roundup_divisions_by_power.size(), 16u);
  EXPECT_EQ(read.roundup_divisions_by_power[1], 8u);
  EXPECT_EQ(read.roundup_divisions_by_power[15], 2u);
}

TEST(TorchSnapshot, TheDeviceIsTheOneAskedForOrTheBusiest) {
  const auto two =
      snapshot({segment(0, 0, 8 << 20), segment(1, 0, 4 << 20)}, {events(1), events(2)});
  EXPECT_EQ(snapshot_of(two).device, 1);
  EXPECT_EQ(snapshot_of(two).segments.at(0).bytes, 4u << 20);
  EXPECT_EQ(snapshot_of(two, 0).events.size(), 1u);
  const auto idle = snapshot({segment(0, 0, 2 << 20), segment(2, 0, 4 << 20)}, {});
  EXPECT_EQ(snapshot_of(idle).device, 2);
  EXPECT_TRUE(testing::mentions(refusal(two, 2), "has no device 2: must be below 2"));
  EXPECT_TRUE(testing::mentions(refusal(two, -1), "has no device -1"));
}

TEST(TorchSnapshot, ANameIsTheCallersFrame) {
  const auto name = [](std::vector<Write> frames) {
    const MemorySnapshot read = snapshot_of(snapshot(
        {}, {list({dict({{"action", word("alloc")}, {"frames", list(std::move(frames))}})})}));
    return read.names[read.events.at(0).name];
  };
  const auto cpp = frame("/src/CUDACachingAllocator.cpp", 9, "c10::cuda::malloc");
  const auto glue = frame("??", 0, "PyEval_EvalFrame");
  const auto linear = frame("/lib/python3/site-packages/torch/nn/modules/linear.py", 5, "forward");
  const auto model = frame("/u/model.py", 12, "forward");
  const auto train = frame("/u/train.py", 40, "main");
  EXPECT_EQ(name({cpp, glue, linear, model, train}), "/u/model.py:12 forward");
  EXPECT_EQ(name({glue, cpp, linear}),
            "/lib/python3/site-packages/torch/nn/modules/linear.py:5 forward");
  EXPECT_EQ(name({glue, cpp}), "/src/CUDACachingAllocator.cpp:9 c10::cuda::malloc");
  EXPECT_EQ(name({glue}), "");
  EXPECT_EQ(name({}), "");
}

// Stacks as torch 2.15 and older versions wrote them with stacks="all": the allocator's own frames
// come first, with a library's name or none, and the program's line stands among them.
TEST(TorchSnapshot, NativeFramesHideNoLineOfTheProgram) {
  const auto name = [](std::vector<Write> frames) {
    const MemorySnapshot read = snapshot_of(snapshot(
        {}, {list({dict({{"action", word("alloc")}, {"frames", list(std::move(frames))}})})}));
    return read.names[read.events.at(0).name];
  };
  const auto unwind = frame("/b/torch/lib/libtorch_cpu.so", 108146796, "torch::unwind::unwind()");
  const auto unknown = frame("/b/torch/lib/libc10_cuda.so", 319562, "??");
  const auto malloc =
      frame("", 0, "c10::cuda::CUDACachingAllocator::Native::malloc(void**, unsigned long)");
  const auto empty = frame("", 0, "at::native::empty_cuda(c10::ArrayRef<long>)");
  const auto interpreter = frame("/usr/bin/python3.11", 4224, "_start");
  const auto vectorcall = frame("/usr/bin/python3.11", 1412002, "PyObject_Vectorcall");
  const auto module = frame("/b/torch/nn/modules/module.py", 1374, "convert");
  const auto linear = frame("/b/torch/nn/modules/linear.py", 134, "forward");
  const auto step = frame("/u/train.py", 82, "step");
  const auto node = frame("/b/torch/lib/libtorch_cpu.so", 83934254,
                          "torch::autograd::generated::MmBackward0::apply(std::vector<int>&&)");
  const auto mm = frame("", 0, "at::(anonymous namespace)::mm<float>(at::Tensor const&)");
  EXPECT_EQ(name({malloc, step}), "/u/train.py:82 step");
  EXPECT_EQ(name({unwind, unknown, malloc, empty, vectorcall, linear, interpreter, module, step}),
            "/u/train.py:82 step");
  // Where the package was built tells that the other file is of it, too.
  EXPECT_EQ(name({unknown, malloc, linear, interpreter, module}),
            "/b/torch/nn/modules/linear.py:134 forward");
  EXPECT_EQ(name({malloc, frame("C:\\py\\Lib\\site-packages\\torch\\nn\\linear.py", 1, "f"),
                  frame("C:\\u\\train.py", 2, "g")}),
            "C:\\u\\train.py:2 g");
  // The thread of a backward pass has no Python.
  EXPECT_EQ(name({unwind, unknown, malloc, empty, mm, node}),
            "torch::autograd::generated::MmBackward0::apply");
  EXPECT_EQ(name({unwind, malloc, empty, mm}), "at::(anonymous namespace)::mm<float>");
  EXPECT_EQ(name({malloc, mm, frame("/u/net.cpp", 88, "net::train(int)"), node}),
            "/u/net.cpp:88 net::train");
  EXPECT_EQ(name({malloc, frame("/u/mat.cpp", 7, "mat::mul(int)"), linear, module}),
            "/u/mat.cpp:7 mat::mul");
  EXPECT_EQ(name({unwind, malloc}), "c10::cuda::CUDACachingAllocator::Native::malloc");
  EXPECT_EQ(name({unwind, unknown}), "");
  // A program's folder may have torch's name.
  EXPECT_EQ(name({frame("/u/torch/nets/module.py", 3, "f"), step}), "/u/torch/nets/module.py:3 f");
  // One frame without a file is a name that a caller gave.
  EXPECT_EQ(name({frame("", 0, "warm_start (cache)")}), "warm_start (cache)");
}

TEST(TorchSnapshot, FrameNamesAreSplitAgain) {
  const TorchFrame cases[] = {
      {"/u/a.py", 3, "f"}, {"C:/a b.py", 12, "a 3:4 b"}, {"", 0, "tag"}, {"x", 0, ""}};
  for (const TorchFrame& given : cases) {
    const TorchFrame parsed = parse_frame_name(frame_name(given));
    EXPECT_EQ(parsed.filename, given.filename);
    EXPECT_EQ(parsed.line, given.line);
    EXPECT_EQ(parsed.function, given.function);
  }
  EXPECT_EQ(parse_frame_name("no: place at 3:x y").function, "no: place at 3:x y");
}

MemorySnapshot example(bool with_categories) {
  MemorySnapshot given;
  given.device = 2;
  given.names = {"", "/u/model.py:12 forward", "tag"};
  given.max_split_bytes = 64 << 20;
  given.roundup_power2_divisions = 4;
  given.segments.push_back({.address = 0x7f0000000000,
                            .bytes = 2 << 20,
                            .stream = 9,
                            .is_small = true,
                            .pool = 1,
                            .blocks = {{.address = 0x7f0000000000,
                                        .bytes = 1024,
                                        .requested_bytes = 700,
                                        .state = BlockState::kAllocated,
                                        .category = Category::kGradient,
                                        .name = 1},
                                       {.address = 0x7f0000000400,
                                        .bytes = 512,
                                        .requested_bytes = 512,
                                        .state = BlockState::kPendingFree,
                                        .name = 2},
                                       {.address = 0x7f0000000600, .bytes = (2 << 20) - 1536}}});
  for (std::uint8_t action = 0; action < kMemoryActionNames.size(); ++action) {
    given.events.push_back({.action = static_cast<MemoryAction>(action),
                            .category = with_categories ? Category::kWeight : Category::kExternal,
                            .pool = static_cast<std::uint16_t>(action % 3),
                            .name = action % 3u,
                            .stream = action == 2 ? UINT64_MAX : action,
                            .address = 0x7f0000000000u + action,
                            .bytes = std::uint64_t{1} << (4 * action),
                            .time_ns = action * 1000});
  }
  return given;
}

std::string exported(const MemorySnapshot& given) {
  std::string bytes;
  write_torch_snapshot(given, [&](std::string_view part) { bytes += part; });
  return bytes;
}

PickleTree read_back(const std::string& bytes) {
  ByteSource source(bytes, "again");
  return read_pickle(source);
}

TEST(TorchSnapshot, ReadsBackItsOwnSnapshots) {
  const MemorySnapshot given = example(false);
  const std::string bytes = exported(given);
  const MemorySnapshot again = torch_snapshot(read_back(bytes), "again");
  EXPECT_EQ(again.device, 2);
  EXPECT_EQ(again.max_split_bytes, given.max_split_bytes);
  EXPECT_EQ(again.roundup_power2_divisions, 4u);
  EXPECT_TRUE(again.roundup_divisions_by_power.empty());
  ASSERT_EQ(again.segments.size(), 1u);
  EXPECT_EQ(again.segments[0].pool, given.segments[0].pool);
  EXPECT_EQ(again.segments[0].stream, 9u);
  EXPECT_TRUE(again.segments[0].is_small);
  ASSERT_EQ(again.segments[0].blocks.size(), 3u);
  for (std::size_t b = 0; b < 3; ++b) {
    const SnapshotBlock& x = given.segments[0].blocks[b];
    const SnapshotBlock& y = again.segments[0].blocks[b];
    EXPECT_EQ(x.address, y.address);
    EXPECT_EQ(x.bytes, y.bytes);
    EXPECT_EQ(x.requested_bytes, y.requested_bytes);
    EXPECT_EQ(x.state, y.state);
    EXPECT_EQ(x.category, y.category);
    EXPECT_EQ(given.names[x.name], again.names[y.name]);
  }
  ASSERT_EQ(again.events.size(), given.events.size());
  for (std::size_t e = 0; e < given.events.size(); ++e) {
    MemoryEvent expected = given.events[e];
    EXPECT_EQ(again.names[again.events[e].name], given.names[expected.name]);
    expected.name = again.events[e].name;
    EXPECT_TRUE(again.events[e] == expected) << e;
  }
  EXPECT_EQ(exported(again), bytes);
}

// If all categories are known, torch/utils/viz/MemoryViz.js stops at a misspelt variable.
TEST(TorchSnapshot, CategoriesAlwaysCountAnUnknownOne) {
  const std::string bytes = exported(example(true));
  EXPECT_TRUE(read_back(bytes).text_id("weight"));
  EXPECT_TRUE(read_back(bytes).text_id("unknown"));
  const MemorySnapshot again = torch_snapshot(read_back(bytes), "again");
  EXPECT_EQ(again.events.size(), kMemoryActionNames.size() + 1);  // the writer ends with a mark
  EXPECT_EQ(again.events[0].category, Category::kWeight);
  EXPECT_FALSE(read_back(exported(example(false))).text_id("unknown"));
}

TEST(TorchSnapshot, NamesThePlaceOfAnError) {
  std::uint32_t memo = 0;
  const Write first_blocks = [&](PickleWriter& out) {
    list({block(512, "inactive")})(out);
    memo = out.remember();
  };
  const Write same_blocks = [&](PickleWriter& out) { out.recall(memo); };
  const auto segment_of = [](const Write& blocks) {
    return dict({{"total_size", number(512)}, {"blocks", blocks}});
  };
  const std::pair<Write, const char*> cases[] = {
      {number(3), "is not a memory snapshot of PyTorch"},
      {dict({{"epoch", number(3)}}), "must be a dict with the keys 'segments' and"},
      {snapshot({number(3)}, {}), "segments[0]: must be a dict"},
      {snapshot({segment(-1, 0, 512)}, {}), "'device' must be below 1024"},
      {snapshot({segment(5000, 0, 512)}, {}), "'device' must be below 1024"},
      {snapshot({dict({{"address", word("x")}})}, {}),
       "segments[0]: 'address' must be a whole number of 64 bits, not a str"},
      {snapshot({segment(0, -4, 512)}, {}), "must end below 2^64"},
      {snapshot({segment(0, 0, 512, {block(513, "inactive")})}, {}),
       "segments[0]['blocks'][0]: ends after its segment"},
      {snapshot({segment(0, 0, 512, {block(512, "active")})}, {}), "'state' must be"},
      {dict({{"segments", list({segment_of(first_blocks), segment_of(same_blocks)})}}),
       "segments[1]: must have blocks of its own"},
      {snapshot({}, {list({number(1)})}), "device_traces[0][0]: must be a dict"},
      {snapshot({}, {list({dict({{"size", number(1)}})})}), "'action' must be a string"},
      {snapshot({}, {list({dict({{"action", word("alloc")}, {"size", list({})}})})}),
       "device_traces[0][0]: 'size' must be a whole number of 64 bits, not a list"},
  };
  testing::expect_refusals(cases, "given.pickle",
                           [](const Write& write) { return refusal(write); });
}

}  // namespace
}  // namespace sluice::record
