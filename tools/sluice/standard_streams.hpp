// The program's descriptors 0, 1 and 2, settled before anything else is opened.
#pragma once

#include <streambuf>
#include <string>

namespace sluice::cli {

// Opens /dev/null on each of the descriptors 0 to 2 that the caller closed. Without it the next
// open() of the program would get such a number, and messages for people would be written into that
// file; the host device's memory is such a file. /dev/null is opened for reading only: reads end at
// once, writes fail with EBADF, so a result that nobody can receive is still an error. Call first,
// in main. Throws Error where /dev/null cannot be opened.
void open_missing_streams();

// While it lives, std::cout writes to the caller's stdout and file descriptor 1 is stderr. Text
// that a library prints (oneDNN with ONEDNN_VERBOSE set, for one) cannot stand among the JSON
// events. One at a time, in main; std::cout's errors are those of write(2).
class PrivateStdout : private std::streambuf {
 public:
  PrivateStdout();
  ~PrivateStdout() override;
  PrivateStdout(const PrivateStdout&) = delete;
  PrivateStdout& operator=(const PrivateStdout&) = delete;

 private:
  int_type overflow(int_type character) override;
  std::streamsize xsputn(const char* text, std::streamsize count) override;
  int sync() override;

  int descriptor_ = -1;  // the caller's stdout
  std::streambuf* replaced_ = nullptr;
  std::string pending_;
};

}  // namespace sluice::cli
