// Training files as one stream of tokens, read where asked, never loaded.
//
// bytes: a token per byte. A path may be a file (taken whatever it holds) or a directory: its
// regular
//   files, recursively, in byte order of their paths; names that begin with '.', symbolic links,
//   empty files and binary ones (a NUL in the first 64 KiB) are passed over. Each file is a
//   document; between two documents stands one token 0, which text does not hold.
// llmc: llm.c's token files (or the `*.bin` in a directory), one behind the other with nothing
// between:
//   a header of 256 int32 {magic 20240520, version 1: u16 tokens; magic 20240801, version 7: u32},
//   [2] the count; then exactly the tokens. Every token is compared with the vocabulary when
//   opened.
// Files are read with pread, not mapped: the pages of a mapping count into the process's resident
// memory, and a file that shrinks under one kills the process; here it is an IoError.
// Thread rule: read() may be called by several threads at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/config/data_format.hpp"

namespace sluice::data {

class TokenStream {
 public:
  // Throws InputError: a path that is missing or cannot be read, nothing to read, a file that is no
  // llm.c file or truncated, a token at or above `vocab` (with file and position), megatron.
  TokenStream(const std::vector<std::string>& paths, config::DataFormat format, std::int64_t vocab);

  std::uint64_t token_count() const { return token_count_; }
  std::size_t file_count() const { return files_.size(); }
  // Tokens [first, first + into.size()); the range must lie inside (InternalError).
  void read(std::uint64_t first, std::span<std::int32_t> into) const;
  // The file that holds a token, and the token's place in it, counted in tokens. The token 0
  // between two documents stands one past the end of the document before it.
  struct Position {
    std::string file;
    std::uint64_t token = 0;
  };
  Position position_of(std::uint64_t token) const;
  // XXH3-128 over the order, sizes and contents of the files, 32 hex digits. File names do not
  // enter: data that moved are the same data. Another fingerprint means that a resumed run would
  // see other data.
  std::string fingerprint() const;

 private:
  struct File {
    std::string path;
    std::uint64_t first_token;   // in the stream
    std::uint64_t tokens;        // without the token 0 behind it
    std::uint64_t offset_bytes;  // of its first token in the file
    std::uint32_t width;         // bytes per token
  };

  // Index of the last file that starts at or before the token.
  std::size_t file_of(std::uint64_t token) const;
  void add_bytes_file(const std::string& path, bool passes_over_binary);
  void add_llmc_file(const std::string& path);
  void append(File file);
  void check_vocabulary(const File& file) const;

  config::DataFormat format_;
  std::int64_t vocab_;
  std::vector<File> files_;
  std::uint64_t token_count_ = 0;
};

}  // namespace sluice::data
