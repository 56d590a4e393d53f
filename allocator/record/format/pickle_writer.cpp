#include "allocator/record/format/pickle_writer.hpp"

#include <bit>
#include <utility>

#include "base/error.hpp"

namespace sluice::record {
namespace {

constexpr std::size_t kFrameBytes = 64 << 10;
// Items per APPENDS or SETITEMS. The viewer passes a batch as the arguments of one call, and
// engines limit these to some ten thousands. Python's pickler takes 1,000.
constexpr std::uint64_t kBatch = 1000;
constexpr char kFrame = '\x95';
constexpr char kMemoize = '\x94';

}  // namespace

PickleWriter::PickleWriter(std::function<void(std::string_view)> sink) : sink_(std::move(sink)) {
  sink_(std::string_view("\x80\x04", 2));
}

void PickleWriter::begin_value() {
  if (open_.empty()) {
    SLUICE_CHECK(!has_root_);
    has_root_ = true;
    return;
  }
  Open& open = open_.back();
  const std::uint64_t batch = open.is_dict ? 2 * kBatch : kBatch;
  if (open.count % batch == 0) {
    if (open.count > 0) frame_.push_back(open.is_dict ? 'u' : 'e');
    if (frame_.size() >= kFrameBytes) flush_frame();
    frame_.push_back('(');
  }
  ++open.count;
}

void PickleWriter::little_endian(std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    frame_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
}

void PickleWriter::flush_frame() {
  if (frame_.empty()) return;
  std::string body;
  body.swap(frame_);
  frame_.push_back(kFrame);
  little_endian(body.size(), 8);
  sink_(frame_);
  sink_(body);
  frame_.clear();
}

void PickleWriter::none() {
  begin_value();
  frame_.push_back('N');
}

void PickleWriter::boolean(bool value) {
  begin_value();
  frame_.push_back(value ? '\x88' : '\x89');
}

void PickleWriter::integer(std::int64_t value) {
  begin_value();
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value < 1 << 8) {
    frame_.push_back('K');
    little_endian(bits, 1);
  } else if (value >= 0 && value < 1 << 16) {
    frame_.push_back('M');
    little_endian(bits, 2);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    frame_.push_back('J');
    little_endian(bits, 4);
  } else {
    frame_.append("\x8a\x08");
    little_endian(bits, 8);
  }
}

void PickleWriter::real(double value) {
  begin_value();
  frame_.push_back('G');
  little_endian(__builtin_bswap64(std::bit_cast<std::uint64_t>(value)), 8);
}

void PickleWriter::text(std::string_view value) {
  SLUICE_CHECK(value.size() <= UINT32_MAX);
  const auto [found, is_new] = texts_.try_emplace(std::string(value), memo_count_);
  if (!is_new) {
    recall(found->second);
    return;
  }
  begin_value();
  if (value.size() < 256) {
    frame_.push_back('\x8c');
    little_endian(value.size(), 1);
  } else {
    frame_.push_back('X');
    little_endian(value.size(), 4);
  }
  frame_.append(value);
  static_cast<void>(remember());
}

void PickleWriter::begin_list() {
  begin_value();
  frame_.push_back(']');
  open_.push_back({false, 0});
}

void PickleWriter::begin_dict() {
  begin_value();
  frame_.push_back('}');
  open_.push_back({true, 0});
}

void PickleWriter::end_container(bool is_dict) {
  SLUICE_CHECK(!open_.empty() && open_.back().is_dict == is_dict);
  SLUICE_CHECK(!is_dict || open_.back().count % 2 == 0);
  if (open_.back().count > 0) frame_.push_back(is_dict ? 'u' : 'e');
  open_.pop_back();
  if (frame_.size() >= kFrameBytes) flush_frame();
}

void PickleWriter::end_list() {
  end_container(false);
}
void PickleWriter::end_dict() {
  end_container(true);
}

void PickleWriter::pair_of(std::int64_t first, std::int64_t second) {
  // The two numbers are not items of the open container, so its count is not changed.
  begin_value();
  std::vector<Open> outer;
  outer.swap(open_);
  has_root_ = false;
  integer(first);
  has_root_ = false;
  integer(second);
  open_.swap(outer);
  frame_.push_back('\x86');
}

std::uint32_t PickleWriter::remember() {
  frame_.push_back(kMemoize);
  return memo_count_++;
}

void PickleWriter::recall(std::uint32_t memo) {
  SLUICE_CHECK(memo < memo_count_);
  begin_value();
  if (memo < 256) {
    frame_.push_back('h');
    little_endian(memo, 1);
  } else {
    frame_.push_back('j');
    little_endian(memo, 4);
  }
}

void PickleWriter::finish() {
  SLUICE_CHECK(open_.empty() && has_root_);
  frame_.push_back('.');
  flush_frame();
}

}  // namespace sluice::record
