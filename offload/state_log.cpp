// Commits by alternating between two areas, the smallest scheme that survives a torn write.
//
// append() writes the frame of record n into area n mod 2 and flushes. Until that flush has
// succeeded, the other area holds record n - 1 untouched. read() verifies both areas and returns
// the valid records, newest first. A frame is valid if its magic, its length and its XXH3-128 over
// header and text agree; lengths are checked against the area before any allocation. A file that
// was cut short keeps its areas at their offsets, because the header stores the original size.
#include "offload/state_log.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "base/units.hpp"
#include "base/xxh3.hpp"
#include "offload/storage_file.hpp"

namespace sluice::offload {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMagic = 0x31474f4c45544153;        // "SATELOG1"
constexpr std::uint64_t kHeaderMagic = 0x48474f4c45544153;  // "SATELOGH"
constexpr std::uint64_t kHeaderBytes = 8192;                // a path has at most 4,095 bytes

struct Frame {
  std::uint64_t magic = kMagic;
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  Digest128 digest;  // of the three fields above and the text
};
static_assert(sizeof(Frame) == 40);

// The digest covers the header fields too, so a frame of another length or number never verifies.
Digest128 frame_digest(const Frame& frame, std::string_view text) {
  const Digest128 of_text = digest_of(text.data(), text.size());
  const std::array<std::uint64_t, 5> words{frame.magic, frame.sequence, frame.bytes, of_text.low,
                                           of_text.high};
  return digest_of(words.data(), sizeof(words));
}

void transfer(StorageEngine& engine, StorageOp op, StorageFileId file, std::uint64_t offset,
              std::span<std::byte> data) {
  StorageRequest request;
  request.op = op;
  request.file = file;
  request.offset = offset;
  request.data = data.data();
  request.bytes = data.size();
  engine.transfer(request);
}

// Reads and verifies the frame at `begin`. Returns nothing if it is no record with that magic.
std::optional<StateLog::Record> read_record(StorageEngine& engine, StorageFileId file,
                                            std::uint64_t begin, std::uint64_t bytes,
                                            std::uint64_t magic = kMagic) {
  if (bytes < sizeof(Frame)) return std::nullopt;
  Frame frame;
  transfer(engine, StorageOp::kRead, file, begin, std::as_writable_bytes(std::span(&frame, 1)));
  if (frame.magic != magic ||
      frame.bytes > std::min(bytes - sizeof(Frame), StateLog::kMostRecordBytes)) {
    return std::nullopt;
  }
  StateLog::Record record{frame.sequence, std::string(frame.bytes, '\0')};
  if (frame.bytes > 0) {
    transfer(engine, StorageOp::kRead, file, begin + sizeof(Frame),
             std::as_writable_bytes(std::span(record.text)));
  }
  // A torn or damaged record fails here.
  if (frame_digest(frame, record.text) != frame.digest) return std::nullopt;
  return record;
}

// Returns a frame as bytes.
std::vector<std::byte> framed(std::uint64_t magic, std::uint64_t sequence, std::string_view text) {
  Frame frame{magic, sequence, text.size(), {}};
  frame.digest = frame_digest(frame, text);
  std::vector<std::byte> bytes(sizeof(frame) + text.size());
  std::memcpy(bytes.data(), &frame, sizeof(frame));
  std::memcpy(bytes.data() + sizeof(frame), text.data(), text.size());
  return bytes;
}

// Reads the header; its sequence field is the size of the file. Implausible values are no header.
std::optional<StateLog::Record> read_header(StorageEngine& engine, StorageFileId file,
                                            std::uint64_t file_bytes) {
  auto header = read_record(engine, file, 0, std::min(file_bytes, kHeaderBytes), kHeaderMagic);
  const bool of_a_log = header && header->text.size() > kFileIdDigits &&
                        header->sequence >= kHeaderBytes &&
                        header->sequence <= StateLog::file_bytes(StateLog::kMostRecordBytes);
  return of_a_log ? header : std::nullopt;
}

// Whether a range of the file holds only zeros.
bool is_blank(StorageEngine& engine, StorageFileId file, std::uint64_t begin, std::uint64_t bytes) {
  std::vector<std::byte> window(std::min<std::uint64_t>(bytes, kMiB));
  for (std::uint64_t at = 0; at < bytes; at += window.size()) {
    const std::span part(window.data(), std::min<std::uint64_t>(window.size(), bytes - at));
    transfer(engine, StorageOp::kRead, file, begin + at, part);
    const bool zeros =
        std::all_of(part.begin(), part.end(), [](std::byte byte) { return byte == std::byte{0}; });
    if (!zeros) return false;
  }
  return true;
}

// Reads the two areas between `begin` and `end`. `end` may lie beyond the end of the file.
void read_areas(StorageEngine& engine, StorageFileId file, std::uint64_t begin, std::uint64_t end,
                StateLog::Contents& contents) {
  const std::uint64_t bytes = engine.file_bytes(file);
  const std::uint64_t middle = begin + (end - begin) / 2;
  for (const auto& [from, to] : {std::pair(begin, middle), std::pair(middle, end)}) {
    // Bytes of the area that the file still has.
    const std::uint64_t there = from < bytes ? std::min(to, bytes) - from : 0;
    if (std::optional<StateLog::Record> record = read_record(engine, file, from, there)) {
      contents.records.push_back(std::move(*record));
    } else if (there < to - from || !is_blank(engine, file, from, there)) {
      ++contents.unreadable_areas;
    }
  }
}

}  // namespace

Digest128 digest_of(const void* data, std::size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.low64, hash.high64};
}

Digest128 digest_of(std::span<const BlockTag> tags) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(tags.size() * sizeof(BlockTag::digest));
  for (const BlockTag& tag : tags) bytes.insert(bytes.end(), tag.digest.begin(), tag.digest.end());
  return digest_of(bytes.data(), bytes.size());
}

std::uint64_t StateLog::file_bytes(std::uint64_t record_bytes) {
  return kHeaderBytes + 2 * round_up(record_bytes + sizeof(Frame), 4096);
}

std::uint64_t StateLog::area_bytes_of(std::uint64_t file_bytes) {
  SLUICE_CHECK(file_bytes >= kHeaderBytes);
  return (file_bytes - kHeaderBytes) / 2;
}

StateLog::StateLog(StorageEngine& engine, std::string path, std::uint64_t bytes)
    : engine_(engine),
      path_(std::move(path)),
      area_bytes_(area_bytes_of(bytes)),
      file_(engine.open(path_, StorageFileMode::kCreate, bytes)) {
  try {
    write_header(bytes);
    // The name must be durable before the first commit, or a crash could lose the whole log.
    sync_directory_of(path_);
  } catch (...) {
    engine_.close(file_);
    throw;
  }
}

void StateLog::write_header(std::uint64_t file_bytes) {
  std::string text = file_id(path_);
  text.resize(kFileIdDigits, '0');  // test engines may have no real files
  text += std::filesystem::absolute(path_).string();
  std::vector<std::byte> header = framed(kHeaderMagic, file_bytes, text);
  SLUICE_CHECK(header.size() <= kHeaderBytes);
  transfer(engine_, StorageOp::kWrite, file_, 0, header);
  engine_.flush(file_);
}

StateLog::~StateLog() {
  try {
    engine_.close(file_);
  } catch (const Error& error) {
    log(LogLevel::kWarning, error.what());  // every record was flushed when it was written
  }
}

void StateLog::append(std::string_view record) {
  if (failed_) throw Error("'" + path_ + "' cannot take another commit: an earlier one failed");
  SLUICE_CHECK_MSG(
      record.size() <= kMostRecordBytes && record.size() + sizeof(Frame) <= area_bytes_,
      "a commit record does not fit into an area of its log");
  std::vector<std::byte> bytes = framed(kMagic, next_, record);
  // Stays set if the write or the flush throws: the log then accepts no further record.
  failed_ = true;
  transfer(engine_, StorageOp::kWrite, file_, kHeaderBytes + next_ % 2 * area_bytes_, bytes);
  engine_.flush(file_);
  failed_ = false;
  ++next_;
}

StateLog::Contents StateLog::read(StorageEngine& engine, const std::string& path) {
  const StorageFileId file = engine.open(path, StorageFileMode::kReadOnly, 0);
  Contents contents;
  try {
    const std::uint64_t bytes = engine.file_bytes(file);
    const auto header = read_header(engine, file, bytes);
    if (header) {
      contents.origin =
          Origin{header->text.substr(kFileIdDigits), header->text.substr(0, kFileIdDigits)};
    }
    // The header's size gives the areas' offsets even if the file was cut short.
    const std::uint64_t made_bytes = header ? header->sequence : bytes;
    contents.whole = bytes == made_bytes && bytes > 0;
    read_areas(engine, file, std::min(made_bytes, kHeaderBytes), made_bytes, contents);
    if (!header && contents.records.empty()) {
      contents.unreadable_areas = 0;
      read_areas(engine, file, 0, bytes, contents);  // the old layout has no header
    }
  } catch (...) {
    engine.close(file);
    throw;
  }
  engine.close(file);
  // At most two records; the newest one is the state of the run.
  std::sort(contents.records.begin(), contents.records.end(),
            [](const Record& a, const Record& b) { return a.sequence > b.sequence; });
  return contents;
}

}  // namespace sluice::offload
