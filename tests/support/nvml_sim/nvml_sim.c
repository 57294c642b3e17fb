/*
 * A libnvidia-ml.so.1 for tests: answers from files, so that the real pynvml runs on a machine without a card.
 * State lies in $GPU_SIM_DIR (default /run/gpu-sim); cards.py writes it.
 *
 *   driver_version        text
 *   init                  an NVML error number for nvmlInit (9 driver not loaded, 18 version mismatch, 999), or "hang"
 *   cards/<nn>/uuid minor name bus memory_mib      bus = 00000000:01:00.0 ; the order of the folders is NVML's index order
 *   cards/<nn>/procs/<pid>   MiB that process uses; a pid that has ended does not count, as on a real driver
 *   cards/<nn>/held          MiB that stay taken although no process owns them (a card that is slow to free its memory)
 *   cards/<nn>/mode          ok | lost (GPU is lost) | gone (no longer enumerated) | hang | error | busy_mib=N
 *
 * A handle is a card's folder, looked up at every call: a card that is pulled is lost for old handles too.
 * Without _GNU_SOURCE on purpose: with it a new glibc binds strtoull to a symbol that Debian 12 lacks.
 */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

typedef int ret_t;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15, UNKNOWN = 999 };
enum { MAX_CARDS = 64, MAX_PROCS = 128, WORD = 128, PATH = 768 };

typedef struct { char id[64]; } card_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } proc_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;

static card_t handles[MAX_CARDS]; /* fixed places: a handle stays valid for the process's life */
static int handle_count, init_count;

static const char *root(void)
{
    const char *dir = getenv("GPU_SIM_DIR");
    return dir && *dir ? dir : "/run/gpu-sim";
}

/* Reads the first line of a card's file, or of a file of the state's root where card is null. 0 = there is such a file. */
static int read_line(const char *card, const char *file, char *out, size_t size)
{
    char path[PATH];
    if (card)
        snprintf(path, sizeof path, "%s/cards/%s/%s", root(), card, file);
    else
        snprintf(path, sizeof path, "%s/%s", root(), file);
    out[0] = 0;
    FILE *stream = fopen(path, "re");
    if (!stream)
        return -1;
    if (fgets(out, (int)size, stream))
        out[strcspn(out, "\n")] = 0;
    fclose(stream);
    return 0;
}

static unsigned long long number(const char *card, const char *file, unsigned long long otherwise)
{
    char word[WORD];
    return read_line(card, file, word, sizeof word) || !word[0] ? otherwise : strtoull(word, 0, 0);
}

static void hang(void)
{
    for (;;)
        pause();
}

/* What every call on this card answers; OK where the card works. */
static ret_t health(const char *card)
{
    char word[WORD];
    if (read_line(card, "uuid", word, sizeof word))
        return LOST;
    if (read_line(card, "mode", word, sizeof word))
        return OK;
    if (!strcmp(word, "hang"))
        hang();
    if (!strcmp(word, "lost") || !strcmp(word, "gone"))
        return LOST;
    return strcmp(word, "error") ? OK : UNKNOWN;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const card_t *)a)->id, ((const card_t *)b)->id);
}

/* The enumerated cards, in index order. */
static int enumerate(card_t *out)
{
    char path[PATH], word[WORD];
    int count = 0;
    snprintf(path, sizeof path, "%s/cards", root());
    DIR *dir = opendir(path);
    if (!dir)
        return 0;
    for (struct dirent *entry; count < MAX_CARDS && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof out->id)
            continue;
        if (!read_line(entry->d_name, "mode", word, sizeof word) && !strcmp(word, "gone"))
            continue;
        strcpy(out[count++].id, entry->d_name);
    }
    closedir(dir);
    qsort(out, count, sizeof *out, by_name);
    return count;
}

static ret_t open_handle(const char *id, card_t **out)
{
    ret_t state = health(id);
    if (state)
        return state;
    for (int i = 0; i < handle_count; i++)
        if (!strcmp(handles[i].id, id)) {
            *out = &handles[i];
            return OK;
        }
    if (handle_count == MAX_CARDS)
        return UNKNOWN;
    strcpy(handles[handle_count].id, id);
    *out = &handles[handle_count++];
    return OK;
}

static ret_t find(const char *file, const char *wanted, card_t **out)
{
    card_t cards[MAX_CARDS];
    char word[WORD];
    if (!init_count)
        return UNINITIALIZED;
    int count = enumerate(cards);
    for (int i = 0; i < count; i++)
        if (!read_line(cards[i].id, file, word, sizeof word) && !strcasecmp(word, wanted))
            return open_handle(cards[i].id, out);
    return NOT_FOUND;
}

static ret_t copy(char *out, unsigned size, const char *text)
{
    if (strlen(text) + 1 > size)
        return TOO_SMALL;
    strcpy(out, text);
    return OK;
}

static ret_t copy_file(char *out, unsigned size, const char *card, const char *file, const char *otherwise)
{
    char word[WORD];
    return copy(out, size, read_line(card, file, word, sizeof word) ? otherwise : word);
}

static ret_t usable(const card_t *card)
{
    if (!init_count)
        return UNINITIALIZED;
    return card ? health(card->id) : INVALID;
}

/* Every call on a handle begins with this. */
#define CHECK(card) \
    do { \
        ret_t state = usable(card); \
        if (state) \
            return state; \
    } while (0)

/* A process of another user answers EPERM, and counts even where /proc hides it; a zombie has let its memory go. */
static int alive(unsigned pid)
{
    char path[64], text[512];
    if (!pid || (kill((pid_t)pid, 0) && errno != EPERM))
        return 0;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *stream = fopen(path, "re");
    if (!stream)
        return 1;
    size_t size = fread(text, 1, sizeof text - 1, stream);
    fclose(stream);
    text[size] = 0;
    const char *name_end = strrchr(text, ')');
    return !name_end || strlen(name_end) < 3 || name_end[2] != 'Z';
}

static int processes(const char *card, proc_t *out)
{
    char path[PATH], file[300];
    int count = 0;
    snprintf(path, sizeof path, "%s/cards/%s/procs", root(), card);
    DIR *dir = opendir(path);
    if (!dir)
        return 0;
    for (struct dirent *entry; count < MAX_PROCS && (entry = readdir(dir));) {
        unsigned pid = (unsigned)strtoul(entry->d_name, 0, 10);
        if (!alive(pid))
            continue;
        snprintf(file, sizeof file, "procs/%s", entry->d_name);
        out[count++] = (proc_t){pid, number(card, file, 0) << 20, ~0u, ~0u};
    }
    closedir(dir);
    return count;
}

static void memory(const char *card, unsigned long long *total, unsigned long long *free, unsigned long long *used)
{
    proc_t procs[MAX_PROCS];
    char word[WORD];
    int count = processes(card, procs);
    *total = number(card, "memory_mib", 12288) << 20;
    *used = number(card, "held", 0) << 20;
    for (int i = 0; i < count; i++)
        *used += procs[i].used;
    if (!read_line(card, "mode", word, sizeof word) && !strncmp(word, "busy_mib=", 9))
        *used += strtoull(word + 9, 0, 0) << 20;
    if (*used > *total)
        *used = *total;
    *free = *total - *used;
}

ret_t nvmlInitWithFlags(unsigned flags)
{
    char word[WORD];
    (void)flags;
    if (!read_line(0, "init", word, sizeof word) && word[0]) {
        if (!strcmp(word, "hang"))
            hang();
        if (atoi(word))
            return atoi(word);
    }
    init_count++;
    return OK;
}

ret_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
ret_t nvmlInit(void) { return nvmlInitWithFlags(0); }

ret_t nvmlShutdown(void)
{
    if (!init_count)
        return UNINITIALIZED;
    init_count--;
    return OK;
}

ret_t nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    return init_count ? copy_file(out, size, 0, "driver_version", "580.00.sim") : UNINITIALIZED;
}

ret_t nvmlSystemGetNVMLVersion(char *out, unsigned size) { return copy(out, size, "13.580.00.sim"); }

ret_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    *out = 13000;
    return OK;
}

ret_t nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

ret_t nvmlDeviceGetCount_v2(unsigned *out)
{
    card_t cards[MAX_CARDS];
    if (!init_count)
        return UNINITIALIZED;
    *out = (unsigned)enumerate(cards);
    return OK;
}

ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t **out)
{
    card_t cards[MAX_CARDS];
    if (!init_count)
        return UNINITIALIZED;
    return index < (unsigned)enumerate(cards) ? open_handle(cards[index].id, out) : INVALID;
}

ret_t nvmlDeviceGetHandleByUUID(const char *uuid, card_t **out) { return find("uuid", uuid, out); }
ret_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, card_t **out) { return find("bus", bus, out); }

ret_t nvmlDeviceGetUUID(card_t *card, char *out, unsigned size)
{
    CHECK(card);
    return copy_file(out, size, card->id, "uuid", "");
}

ret_t nvmlDeviceGetName(card_t *card, char *out, unsigned size)
{
    CHECK(card);
    return copy_file(out, size, card->id, "name", "Simulated GPU");
}

ret_t nvmlDeviceGetMinorNumber(card_t *card, unsigned *out)
{
    CHECK(card);
    *out = (unsigned)number(card->id, "minor", 0);
    return OK;
}

ret_t nvmlDeviceGetIndex(card_t *card, unsigned *out)
{
    card_t cards[MAX_CARDS];
    CHECK(card);
    int count = enumerate(cards);
    for (int i = 0; i < count; i++)
        if (!strcmp(cards[i].id, card->id)) {
            *out = (unsigned)i;
            return OK;
        }
    return LOST;
}

ret_t nvmlDeviceGetCudaComputeCapability(card_t *card, int *major, int *minor)
{
    CHECK(card);
    *major = (int)number(card->id, "cc_major", 8);
    *minor = (int)number(card->id, "cc_minor", 6);
    return OK;
}

ret_t nvmlDeviceGetTemperature(card_t *card, int sensor, unsigned *out)
{
    (void)sensor;
    CHECK(card);
    *out = (unsigned)number(card->id, "temperature", 40);
    return OK;
}

ret_t nvmlDeviceGetPowerUsage(card_t *card, unsigned *out)
{
    CHECK(card);
    *out = (unsigned)number(card->id, "power_mw", 30000);
    return OK;
}

ret_t nvmlDeviceGetUtilizationRates(card_t *card, unsigned *out)
{
    CHECK(card);
    out[0] = (unsigned)number(card->id, "utilization", 0);
    out[1] = 0;
    return OK;
}

ret_t nvmlDeviceGetMigMode(card_t *card, unsigned *current, unsigned *pending)
{
    (void)current;
    (void)pending;
    CHECK(card);
    return NOT_SUPPORTED;
}

ret_t nvmlDeviceGetComputeRunningProcesses_v3(card_t *card, unsigned *count, proc_t *out)
{
    proc_t procs[MAX_PROCS];
    CHECK(card);
    unsigned room = *count, found = (unsigned)processes(card->id, procs);
    *count = found;
    if (!found)
        return OK;
    if (!out || room < found)
        return TOO_SMALL;
    memcpy(out, procs, found * sizeof *procs);
    return OK;
}

ret_t nvmlDeviceGetGraphicsRunningProcesses_v3(card_t *card, unsigned *count, proc_t *out)
{
    (void)out;
    CHECK(card);
    *count = 0;
    return OK;
}

ret_t nvmlDeviceGetMemoryInfo(card_t *card, unsigned long long *out)
{
    CHECK(card);
    memory(card->id, &out[0], &out[1], &out[2]); /* total, free, used */
    return OK;
}

ret_t nvmlDeviceGetMemoryInfo_v2(card_t *card, memory_v2_t *out)
{
    CHECK(card);
    out->reserved = 0;
    memory(card->id, &out->total, &out->free, &out->used);
    return OK;
}

ret_t nvmlDeviceGetPciInfo_v3(card_t *card, pci_t *out)
{
    char bus[WORD];
    CHECK(card);
    if (read_line(card->id, "bus", bus, sizeof bus))
        strcpy(bus, "00000000:01:00.0");
    memset(out, 0, sizeof *out);
    sscanf(bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->bus_id, sizeof out->bus_id, "%.31s", bus);
    snprintf(out->legacy, sizeof out->legacy, "%.12s", strlen(bus) > 4 ? bus + 4 : bus);
    out->id = 0x220610de;
    return OK;
}

const char *nvmlErrorString(ret_t code)
{
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case TOO_SMALL: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 12: return "NVML Shared Library Not Found";
    case LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
