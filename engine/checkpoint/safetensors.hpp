// Reading and writing of safetensors files (github.com/huggingface/safetensors, README "Format").
//
// u64 little-endian header length N; N bytes of JSON, an object {name: {dtype, shape,
// data_offsets}}, with an optional "__metadata__" of strings; then the buffer that data_offsets are
// relative to. Files are untrusted: every count is checked before it is used, and the tensors must
// cover the buffer without hole or overlap, to the last byte. Nothing but the header is held in
// memory. Errors: InputError if the file is not valid, one sentence with the file and the tensor;
// IoError if the system fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/digest.hpp"
#include "base/dtype.hpp"
#include "base/posix_file.hpp"

namespace sluice::checkpoint {

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  // The half-open range [begin_bytes, end_bytes) in the buffer.
  std::uint64_t begin_bytes = 0, end_bytes = 0;

  std::uint64_t bytes() const { return end_bytes - begin_bytes; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // by begin_bytes
  std::map<std::string, std::string> metadata;
};

// Elements times element size; nothing where the product passes 2^63.
std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape);

// Parses the JSON part. buffer_bytes: the bytes of the file after it; `file` is for messages.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t buffer_bytes,
                                           const std::string& file);

// A metadata member of this name holds a digest of the file: XXH3-128, in hexadecimal, of the
// header as it is written with zeros in its place, and of each tensor's own digest in order.
inline constexpr const char* kDigestMember = "digest";

// Thread rule: const calls may be made by several threads at once.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<SafetensorsTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // Reads the whole file and compares it with its digest. Throws InputError if it has none, and
  // IntegrityError if they differ.
  void check_digest() const;
  // Null where there is none.
  const SafetensorsTensor* find(const std::string& name) const;

  // Bytes [offset_bytes, offset_bytes + into.size()) of a tensor of this file.
  void read(const SafetensorsTensor& tensor, std::uint64_t offset_bytes,
            std::span<std::byte> into) const;

 private:
  PosixFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> index_;
  std::uint64_t buffer_offset_ = 0;  // of the buffer in the file
  DigestValue header_digest_;        // of the header, with zeros in the digest's place
};

struct SafetensorsSpec {
  std::string name;  // UTF-8, unique
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
};

// The header of a file, and the range of each tensor in the file, in the order of the specs.
struct SafetensorsLayout {
  struct Range {
    std::uint64_t begin_bytes = 0, end_bytes = 0;
    std::uint64_t bytes() const { return end_bytes - begin_bytes; }
  };
  std::string header;
  std::vector<Range> tensors;
};
SafetensorsLayout safetensors_layout(const std::vector<SafetensorsSpec>& specs,
                                     const std::map<std::string, std::string>& metadata = {});
// The bytes of a whole file of these tensors.
std::uint64_t safetensors_bytes(const std::vector<SafetensorsSpec>& specs,
                                const std::map<std::string, std::string>& metadata = {});

// Writes the header at once, then tensors in pieces and in any order; they lie in the order of the
// specs. has_digest: kDigestMember is added to the metadata. Write to a temporary name and
// rename_durably() it: a file that was not finished is removed by the destructor. One thread at a
// time.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, const std::vector<SafetensorsSpec>& specs,
                    const std::map<std::string, std::string>& metadata = {},
                    bool has_digest = false);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of a tensor, by its place in the specs: each tensor front to back, without gaps.
  void append(std::size_t tensor, std::span<const std::byte> from);
  // All tensors must be whole (InternalError otherwise). Returns when the file is on the disk.
  void finish();

 private:
  PosixFile file_;
  std::vector<SafetensorsSpec> specs_;
  SafetensorsLayout layout_;
  std::vector<std::uint64_t> written_bytes_;  // of each tensor
  std::vector<Digest> digests_;               // of each tensor's bytes; empty: the file has none
  bool finished_ = false;
};

}  // namespace sluice::checkpoint
