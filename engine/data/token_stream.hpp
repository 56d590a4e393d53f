// Training files as one stream of tokens. Tokens are read on demand; files are never loaded whole.
//
// bytes: a token per byte. A path may be a file with any contents or a directory. A directory means
//   its regular files, recursively, in byte order of their paths. Names that begin with '.',
//   symbolic links, empty files and binary files (a NUL in the first 64 KiB) are skipped. Each file
//   is a document. One token 0, which does not occur in text, stands between two documents.
// llmc: llm.c's token files, or the `*.bin` files of a directory, one after another. A file has a
//   header of 256 int32 {magic 20240520, version 1: u16 tokens; magic 20240801, version 7: u32},
//   with the count at index 2; then exactly the tokens. Opening a file compares every token with
//   the vocabulary.
// Files are read with pread and not mapped. The pages of a mapping count into the process's
// resident memory, and a file that shrinks under a mapping kills the process; with pread it is an
// IoError. Thread rule: several threads may call read() at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/config/data_format.hpp"

namespace sluice::data {

class TokenStream {
 public:
  // Throws InputError if a path is missing or unreadable, if there is nothing to read, if a file is
  // not an llm.c file or is truncated, if a token is at or above `vocab` (the message names file
  // and position), and for the format megatron.
  TokenStream(const std::vector<std::string>& paths, config::DataFormat format, std::int64_t vocab);

  std::uint64_t token_count() const { return token_count_; }
  std::size_t file_count() const { return files_.size(); }
  // Reads tokens [first, first + into.size()). Throws InternalError if the range ends beyond the
  // stream.
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
    std::uint64_t tokens;        // without the token 0 after it
    std::uint64_t offset_bytes;  // offset of its first token in the file
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
