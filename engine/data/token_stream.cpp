#include "engine/data/token_stream.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "base/digest.hpp"
#include "base/directory.hpp"
#include "base/error.hpp"
#include "base/open_failure.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"

namespace sluice::data {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kProbeBytes = 64 * kKiB;
constexpr std::size_t kScanBytes = kMiB;  // a multiple of every token width
constexpr std::size_t kLlmcHeaderInts = 256;
constexpr std::uint64_t kLlmcHeaderBytes = kLlmcHeaderInts * 4;

PosixFile open_data(const std::string& path) {
  try {
    return PosixFile::open_read(path);
  } catch (const IoError& error) {
    throw InputError("data.paths: '" + path + "' cannot be read: " + open_failure(error));
  }
}

// Regular files below `directory` by the rules at the top of the header, sorted.
std::vector<std::string> list_files(const std::string& directory) {
  try {
    std::vector<std::string> files;
    for (const fs::path& file : list_files_below(directory)) files.push_back(file.native());
    return files;
  } catch (const IoError& error) {
    throw InputError("data.paths: '" + directory + "' cannot be listed: " + error.what());
  }
}

std::int32_t token_at(const std::byte* data, std::uint32_t width) {
  std::uint32_t token = 0;  // u32 tokens above 2^31 turn negative and fail the vocabulary check
  std::memcpy(&token, data, width);
  return static_cast<std::int32_t>(token);
}

}  // namespace

TokenStream::TokenStream(const std::vector<std::string>& paths, config::DataFormat format,
                         std::int64_t vocab)
    : format_(format), vocab_(vocab) {
  if (format == config::DataFormat::kMegatron) {
    throw InputError("data.format = \"megatron\" is not available in this version");
  }
  if (paths.empty()) {
    throw InputError("data.paths is empty: name at least one file or directory to train on");
  }
  for (const std::string& path : paths) {
    std::error_code error;
    const auto type = fs::status(path, error).type();
    if (type == fs::file_type::not_found) {
      throw InputError("data.paths: '" + path + "' does not exist");
    }
    const bool directory = type == fs::file_type::directory;
    for (const auto& name : directory ? list_files(path) : std::vector<std::string>{path}) {
      if (format == config::DataFormat::kBytes) {
        add_bytes_file(name, directory);
      } else if (!directory || name.ends_with(".bin")) {
        add_llmc_file(name);
      }
    }
  }
  if (token_count_ == 0) {
    throw InputError("data.paths: '" + paths.front() + "' " +
                     (paths.size() > 1 ? "and the others hold" : "holds") + " no " +
                     (format == config::DataFormat::kBytes ? "text" : "tokens") + " to train on");
  }
}

void TokenStream::add_bytes_file(const std::string& path, bool passes_over_binary) {
  const PosixFile file = open_data(path);
  const std::uint64_t bytes = file.size_bytes();
  if (bytes == 0) return;
  if (passes_over_binary) {
    std::array<std::byte, kProbeBytes> probe;
    const std::size_t got = file.read_some(0, probe);
    if (std::find(probe.begin(), probe.begin() + got, std::byte{0}) != probe.begin() + got) return;
  }
  append(File{path, 0, bytes, 0, 1});
}

void TokenStream::add_llmc_file(const std::string& path) {
  const PosixFile file = open_data(path);
  const std::uint64_t bytes = file.size_bytes();
  if (bytes < kLlmcHeaderBytes) {
    throw InputError(path + " has " + std::to_string(bytes) +
                     " bytes; an llm.c token file starts with a header of 1024");
  }
  std::array<std::int32_t, kLlmcHeaderInts> header{};
  file.read_exact(0, std::as_writable_bytes(std::span(header)));
  std::uint32_t width = 0;
  if (header[0] == 20240520 && header[1] == 1) width = 2;
  if (header[0] == 20240801 && header[1] == 7) width = 4;
  if (width == 0) {
    throw InputError(path + " is not an llm.c token file: magic " + std::to_string(header[0]) +
                     " version " + std::to_string(header[1]) +
                     ", where 20240520 version 1 or 20240801 version 7 is right");
  }
  if (header[2] < 0) {
    throw InputError(path + ": its header counts " + std::to_string(header[2]) + " tokens");
  }
  const auto tokens = static_cast<std::uint64_t>(header[2]);
  const std::uint64_t needed = kLlmcHeaderBytes + tokens * width;
  if (bytes != needed) {
    throw InputError(path + (bytes < needed ? " is truncated: it has " : " is too long: it has ") +
                     std::to_string(bytes) + " bytes; its header's " + std::to_string(tokens) +
                     " tokens need " + std::to_string(needed));
  }
  if (tokens > 0) append(File{path, 0, tokens, kLlmcHeaderBytes, width});
}

void TokenStream::append(File file) {
  check_vocabulary(file);
  if (format_ == config::DataFormat::kBytes && !files_.empty())
    ++token_count_;  // the token 0 between
  file.first_token = token_count_;
  token_count_ += file.tokens;
  files_.push_back(std::move(file));
}

void TokenStream::check_vocabulary(const File& file) const {
  const std::int64_t largest = (std::int64_t{1} << (8 * file.width)) - 1;
  if (largest < vocab_) return;
  const PosixFile source = open_data(file.path);
  std::vector<std::byte> buffer(kScanBytes);
  std::uint64_t position = 0;
  while (position < file.tokens) {
    const std::uint64_t count =
        std::min<std::uint64_t>(kScanBytes / file.width, file.tokens - position);
    source.read_exact(file.offset_bytes + position * file.width,
                      std::span(buffer).first(count * file.width));
    for (std::uint64_t i = 0; i < count; ++i) {
      // As unsigned: a u32 token above 2^31 is too large, not negative.
      const auto token =
          static_cast<std::uint32_t>(token_at(buffer.data() + i * file.width, file.width));
      if (token >= vocab_) {
        throw InputError(file.path + ": token " + std::to_string(token) + " at position " +
                         std::to_string(position + i) + " is not below model.vocab, " +
                         std::to_string(vocab_));
      }
    }
    position += count;
  }
}

std::size_t TokenStream::file_of(std::uint64_t token) const {
  const auto after = std::upper_bound(
      files_.begin(), files_.end(), token,
      [](std::uint64_t value, const File& candidate) { return value < candidate.first_token; });
  return static_cast<std::size_t>(after - files_.begin()) - 1;
}

TokenStream::Position TokenStream::position_of(std::uint64_t token) const {
  SLUICE_CHECK(token < token_count_);
  const File& file = files_[file_of(token)];
  return {file.path, token - file.first_token};
}

void TokenStream::read(std::uint64_t first, std::span<std::int32_t> into) const {
  SLUICE_CHECK(first <= token_count_ && into.size() <= token_count_ - first);
  std::size_t done = 0;
  std::vector<std::byte> buffer;
  for (auto file = files_.begin() + static_cast<std::ptrdiff_t>(file_of(first)); done < into.size();
       ++file) {
    const std::uint64_t inside = first + done - file->first_token;
    if (inside < file->tokens) {
      const std::uint64_t count =
          std::min<std::uint64_t>(file->tokens - inside, into.size() - done);
      buffer.resize(count * file->width);
      PosixFile::open_read(file->path)
          .read_exact(file->offset_bytes + inside * file->width, buffer);
      for (std::uint64_t i = 0; i < count; ++i) {
        into[done + i] = token_at(buffer.data() + i * file->width, file->width);
      }
      done += count;
    }
    if (done < into.size() && format_ == config::DataFormat::kBytes) into[done++] = 0;
  }
}

namespace {

// Hashes all of a small file and evenly spread samples of a large one, which would take minutes to
// read.
void digest_content(const std::string& path, Digest& digest) {
  constexpr std::uint64_t kBlockBytes = 1 << 20;
  constexpr std::uint64_t kBlocks = 64;
  const PosixFile file = PosixFile::open_read(path);
  const std::uint64_t size = file.size_bytes();
  std::vector<std::byte> block(kBlockBytes);
  const std::uint64_t blocks = (size + kBlockBytes - 1) / kBlockBytes;
  const std::uint64_t sampled = std::min(blocks, kBlocks);
  for (std::uint64_t i = 0; i < sampled; ++i) {
    const std::uint64_t at = blocks <= kBlocks ? i : i * (blocks - 1) / (sampled - 1);
    digest.update(block.data(), file.read_some(at * kBlockBytes, block));
  }
}

}  // namespace

std::string TokenStream::fingerprint() const {
  Digest digest;
  for (const File& file : files_) {
    digest.update_u64(file.tokens);
    digest.update_u64(file.width);
    digest_content(file.path, digest);
  }
  return digest.finish().hex();
}

}  // namespace sluice::data
