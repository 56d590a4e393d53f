// Listing a directory: one way for the whole house.
#pragma once

#include <filesystem>
#include <vector>

namespace sluice {

// The entries of `directory`, sorted by the bytes of their names; "." and ".." are left out. Empty
// where there is no such directory. IoError where it cannot be read.
std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory);

// All regular files below `directory`, sorted by the bytes of their paths. Symbolic links are not
// followed. Hidden files and directories, those that begin with a dot, are left out. IoError.
std::vector<std::filesystem::path> list_files_below(const std::filesystem::path& directory);

}  // namespace sluice
