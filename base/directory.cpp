#include "base/directory.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/error.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// Each entry of `directory` goes to `take`. Nothing happens where the directory does not exist.
template <typename Take>
void for_entries(const fs::path& directory, Take take) {
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) return;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) take(*entry);
  if (error) throw IoError("list", directory.string(), 0, 0, error.value());
}

// By the bytes of the whole path: the order of training files depends on it.
void sort_by_name(std::vector<fs::path>& paths) {
  std::sort(paths.begin(), paths.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
}

void add_files_below(const fs::path& directory, std::vector<fs::path>& files) {
  for_entries(directory, [&](const fs::directory_entry& entry) {
    if (entry.path().filename().native().starts_with('.')) return;
    std::error_code ignored;  // an entry that has just gone is no file
    const fs::file_type type = entry.symlink_status(ignored).type();
    if (type == fs::file_type::directory) add_files_below(entry.path(), files);
    if (type == fs::file_type::regular) files.push_back(entry.path());
  });
}

}  // namespace

std::vector<fs::path> list_directory(const fs::path& directory) {
  std::vector<fs::path> entries;
  for_entries(directory,
              [&](const fs::directory_entry& entry) { entries.push_back(entry.path()); });
  sort_by_name(entries);
  return entries;
}

std::vector<fs::path> list_files_below(const fs::path& directory) {
  std::vector<fs::path> files;
  add_files_below(directory, files);
  sort_by_name(files);
  return files;
}

}  // namespace sluice
