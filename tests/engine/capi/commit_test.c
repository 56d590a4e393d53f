/* Commits of sessions: the bits of the uninterrupted run after a session's end and after a kill, in
 * each format and from each tier; commits without an update, writes and loads between commits;
 * wrong directories, other parameters and damaged data. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/engine/capi/trial.h"

static const struct format formats[FORMATS] = ALL_FORMATS;
static const int32_t places[2] = {SLUICE_STATE_PINNED, SLUICE_STATE_STORAGE};
static char folder[4096]; /* of storage and commits; empty at the start of a test */

/* Calls act(path) for each file of the folder; returns their number. */
static int for_files(void (*act)(const char* path)) {
  DIR* directory = opendir(folder);
  struct dirent* entry;
  int files = 0;
  if (directory == NULL) return -1;
  while ((entry = readdir(directory)) != NULL) {
    char path[8192];
    if (entry->d_name[0] == '.') continue;
    ++files;
    snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
    if (act != NULL) act(path);
  }
  closedir(directory);
  return files;
}
static void remove_file(const char* path) {
  CHECK(unlink(path) == 0);
}
static void damage(const char* path) {
  static unsigned char garbage[65536];
  struct stat facts;
  off_t at;
  const int file = open(path, O_WRONLY);
  if (strstr(path, ".durable") != NULL) {
    memset(garbage, 0xab, sizeof(garbage));
    CHECK(fstat(file, &facts) == 0);
    for (at = 0; at < facts.st_size; at += (off_t)sizeof(garbage)) {
      CHECK(pwrite(file, garbage, sizeof(garbage), at) == (ssize_t)sizeof(garbage));
    }
  }
  close(file);
}

static void open_here(struct trial* t, int place, int format) {
  open_committing(t, make_engine(folder, 8 * MIB), places[place], formats[format], folder);
}
static void close_here(struct trial* t) {
  close_trial(t);
  sluice_engine_destroy(t->engine);
}
static uint64_t updates_of(const struct trial* t) {
  sluice_session_stats stats = SLUICE_SESSION_STATS_INIT;
  EXPECT(SLUICE_OK, sluice_session_get_stats(t->session, &stats));
  return stats.updates;
}

/* The digest after so many updates of a session that never commits. */
static uint64_t plain_digest(int format, uint32_t updates) {
  struct trial t;
  double norm;
  uint64_t digest;
  open_trial(&t, make_engine(NULL, 8 * MIB), SLUICE_STATE_PINNED, formats[format]);
  digest = train(&t, 0, updates, &norm);
  close_here(&t);
  return digest;
}

/* Commits after updates 2 and 3, and what came after the last one is lost. */
static void test_tiers(int format, int place, int next_place) {
  struct trial t;
  double norm;
  sluice_usage usage = SLUICE_USAGE_INIT;
  sluice_session_stats stats = SLUICE_SESSION_STATS_INIT;
  const uint64_t expected = plain_digest(format, STEPS);
  open_here(&t, place, format);
  EXPECT(SLUICE_OK, sluice_session_get_stats(t.session, &stats));
  EXPECT(SLUICE_OK, sluice_engine_usage(t.engine, SLUICE_TIER_STORAGE, &usage));
  CHECK(usage.live_bytes == stats.planned_storage_bytes);
  EXPECT(SLUICE_OK, sluice_engine_usage(t.engine, SLUICE_TIER_PINNED, &usage));
  CHECK(usage.live_bytes == stats.planned_pinned_bytes);
  train(&t, 0, 2, &norm);
  EXPECT(SLUICE_OK, sluice_session_commit(t.session));
  train(&t, 2, 3, &norm);
  EXPECT(SLUICE_OK, sluice_session_commit(t.session));
  CHECK(train(&t, 3, STEPS, &norm) == expected);
  close_here(&t);
  open_here(&t, next_place, format);
  EXPECT(SLUICE_OK, sluice_session_load(t.session, folder));
  CHECK(updates_of(&t) == 3);
  CHECK(train(&t, 3, 5, &norm) == plain_digest(format, 5));
  EXPECT(SLUICE_OK, sluice_session_commit(t.session)); /* the files of the first session go */
  CHECK(for_files(NULL) == 3);                         /* a log, its data, the lock */
  CHECK(train(&t, 5, STEPS, &norm) == expected);
  close_here(&t);
  /* A session that does not commit loads them, too. */
  open_trial(&t, make_engine(folder, 8 * MIB), places[place], formats[format]);
  EXPECT(SLUICE_OK, sluice_session_load(t.session, folder));
  CHECK(train(&t, 5, STEPS, &norm) == expected);
  EXPECT(SLUICE_E_STATE, sluice_session_commit(t.session));
  close_here(&t);
  for_files(remove_file);
}

/* Weights and moments that are written, and state that is loaded, leave the commit before as it
 * was. */
static void test_changes_between(int format, int place) {
  static unsigned char raw[400000];
  char path[8192];
  struct trial t;
  double norm;
  uint64_t committed, changed;
  const size_t elems = elems_of(3);
  const size_t bytes = elems * (formats[format].dtype == SLUICE_DTYPE_F32 ? 4 : 2);
  snprintf(path, sizeof(path), "%s.safetensors", folder);
  open_here(&t, place, format);
  committed = train(&t, 0, 3, &norm);
  EXPECT(SLUICE_OK, sluice_session_save(t.session, path));
  EXPECT(SLUICE_OK, sluice_session_commit(t.session));
  EXPECT(SLUICE_OK, sluice_session_commit(t.session));
  CHECK(digest_state(&t) == committed);
  /* Not committed, so lost. */
  EXPECT(SLUICE_OK,
         sluice_session_write(t.session, t.params[3], SLUICE_KIND_WEIGHT, 0, elems, raw, bytes));
  CHECK(digest_state(&t) != committed);
  EXPECT(SLUICE_OK, sluice_session_load(t.session, folder));
  CHECK(digest_state(&t) == committed);
  /* A part of a home on storage is written, and committed. */
  EXPECT(SLUICE_OK, sluice_session_write(t.session, t.params[3], SLUICE_KIND_WEIGHT, 5000, 300, raw,
                                         300 * bytes / elems));
  changed = digest_state(&t);
  EXPECT(SLUICE_OK, sluice_session_commit(t.session));
  train(&t, 3, 4, &norm);
  EXPECT(SLUICE_OK, sluice_session_load(t.session, folder));
  CHECK(digest_state(&t) == changed && updates_of(&t) == 3);
  /* A file after a commit. */
  EXPECT(SLUICE_OK, sluice_session_load(t.session, path));
  CHECK(digest_state(&t) == committed);
  close_here(&t);
  open_here(&t, 1 - place, format);
  EXPECT(SLUICE_OK, sluice_session_load(t.session, folder));
  CHECK(digest_state(&t) == changed);
  EXPECT(SLUICE_OK, sluice_session_load(t.session, path));
  EXPECT(SLUICE_OK, sluice_session_commit(t.session));
  close_here(&t);
  open_here(&t, place, format);
  EXPECT(SLUICE_OK, sluice_session_load(t.session, folder));
  CHECK(digest_state(&t) == committed);
  close_here(&t);
  for_files(remove_file);
}

/* A gradient that is not finite moves the state to the other copy and changes no bit. */
static void test_not_finite(void) {
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  struct trial t;
  double norm;
  uint64_t committed;
  open_here(&t, 1, 0);
  committed = train(&t, 0, 2, &norm);
  EXPECT(SLUICE_OK, sluice_session_commit(t.session));
  give_grads(&t, 5, NAN);
  EXPECT(SLUICE_E_NOT_FINITE, sluice_session_update(t.session, &info));
  CHECK(digest_state(&t) == committed);
  EXPECT(SLUICE_OK, sluice_session_commit(t.session));
  EXPECT(SLUICE_OK, sluice_session_load(t.session, folder));
  CHECK(train(&t, 2, STEPS, &norm) == plain_digest(0, STEPS));
  close_here(&t);
  for_files(remove_file);
}

static sluice_status seal_with(sluice_engine* engine, const char* commit_path) {
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_session* session = NULL;
  struct trial t;
  sluice_unit unit;
  sluice_status status;
  options.commit_path = commit_path;
  status = sluice_session_create(engine, &options, &session);
  if (status != SLUICE_OK) return status;
  t.session = session;
  t.dtype = SLUICE_DTYPE_F32;
  EXPECT(SLUICE_OK, sluice_session_add_group(session, &group, &t.groups[0]));
  EXPECT(SLUICE_OK, sluice_session_add_unit(session, "unit", &unit));
  EXPECT(SLUICE_OK, add_param(&t, 1, unit, t.groups[0], NULL));
  status = sluice_session_seal(session);
  sluice_session_destroy(session);
  return status;
}

static void test_refusals(void) {
  sluice_engine* plain = make_engine(NULL, 8 * MIB);
  sluice_engine* engine = make_engine(folder, 8 * MIB);
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  sluice_session_options old = SLUICE_SESSION_OPTIONS_INIT;
  sluice_session* session = NULL;
  struct trial t;
  double norm;
  uint64_t before;
  EXPECT(SLUICE_E_INPUT, seal_with(engine, ""));
  EXPECT(SLUICE_E_INPUT, seal_with(engine, "/nonexistent/sluice"));
  EXPECT(SLUICE_E_INPUT, seal_with(plain, folder));
  EXPECT(SLUICE_OK, sluice_error(&info));
  CHECK(strstr(info.message, "storage_paths") != NULL);
  CHECK(for_files(NULL) == 0);
  /* A program of the first version has no commit_path, whatever lies after its struct. */
  old.struct_size = 8;
  old.commit_path = "/nonexistent/sluice";
  EXPECT(SLUICE_OK, sluice_session_create(plain, &old, &session));
  sluice_session_destroy(session);
  /* One session at a time; a session that commits nothing leaves nothing. */
  open_here(&t, 0, 0);
  EXPECT(SLUICE_E_INPUT, seal_with(engine, folder));
  EXPECT(SLUICE_E_INPUT, sluice_session_load(t.session, folder)); /* no commit yet */
  train(&t, 0, 1, &norm);
  close_here(&t);
  CHECK(for_files(NULL) == 0);
  /* Other parameters or formats, and data that are damaged: nothing has changed. */
  open_here(&t, 1, 0);
  train(&t, 0, 2, &norm);
  EXPECT(SLUICE_OK, sluice_session_commit(t.session));
  close_here(&t);
  open_trial(&t, engine, SLUICE_STATE_PINNED, formats[3]);
  before = digest_state(&t);
  EXPECT(SLUICE_E_INPUT, sluice_session_load(t.session, folder));
  CHECK(digest_state(&t) == before);
  close_trial(&t);
  for_files(damage);
  open_trial(&t, engine, SLUICE_STATE_PINNED, formats[0]);
  before = digest_state(&t);
  EXPECT(SLUICE_E_INPUT, sluice_session_load(t.session, folder));
  CHECK(digest_state(&t) == before);
  close_trial(&t);
  sluice_engine_destroy(plain);
  sluice_engine_destroy(engine);
  for_files(remove_file);
}

/* In a process of its own: commits and updates until it is killed. */
static int run_until_killed(int place, int format) {
  struct trial t;
  double norm;
  uint32_t step;
  open_here(&t, place, format);
  if (for_files(NULL) > 3) EXPECT(SLUICE_OK, sluice_session_load(t.session, folder));
  for (step = (uint32_t)updates_of(&t); check_failures == 0; ++step) {
    train(&t, step, step + 1, &norm);
    if (step % 2 == 1) EXPECT(SLUICE_OK, sluice_session_commit(t.session));
  }
  return check_result();
}

/* Kills at random moments; each time the commit has the bits of the uninterrupted run. */
static void test_kills(const char* program, int rounds) {
  uint32_t random = 11;
  int round;
  for (round = 0; round < rounds; ++round) {
    const int place = round % 2, format = 2;
    struct timespec pause = {0, 0};
    struct trial t;
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
      execl(program, program, folder, place == 0 ? "0" : "1", (char*)NULL);
      _exit(9);
    }
    pause.tv_nsec = 150000000 + (long)((draw(&random) + 1) * 2e8);
    nanosleep(&pause, NULL);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    open_here(&t, 1 - place, format);
    if (sluice_session_load(t.session, folder) == SLUICE_OK) {
      const uint32_t updates = (uint32_t)updates_of(&t);
      CHECK(updates % 2 == 0 && digest_state(&t) == plain_digest(format, updates));
    } else {
      sluice_error_info info = SLUICE_ERROR_INFO_INIT;
      EXPECT(SLUICE_OK, sluice_error(&info));
      CHECK(info.status == SLUICE_E_INPUT && strstr(info.message, "has no commit") != NULL);
    }
    close_here(&t);
  }
  for_files(remove_file);
}

int main(int argc, char** argv) {
  int format, place;
  if (argc > 2) {
    snprintf(folder, sizeof(folder), "%s", argv[1]);
    return run_until_killed(argv[2][0] - '0', 2);
  }
  snprintf(folder, sizeof(folder), "%s/capi_commits", argc > 1 ? argv[1] : ".");
  CHECK(mkdir(folder, 0700) == 0 || errno == EEXIST);
  for_files(remove_file);
  for (format = 0; format < FORMATS; ++format) {
    for (place = 0; place < 2; ++place) {
      test_tiers(format, place, (format + place) % 2);
      test_changes_between(format, place);
    }
  }
  test_not_finite();
  test_refusals();
  test_kills("/proc/self/exe", 12);
  return check_result();
}
