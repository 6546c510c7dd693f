/*-------------------------------------------------------------------------
 *
 * walden_archive.c
 *		Archive module: hands each file's name to "walden archive serve" and
 *		waits until that has archived it.
 *
 * The work is not done in this process, because PostgreSQL cannot do without
 * it: whatever goes wrong in "walden archive serve", the archiver reports that
 * the file was not archived, and the server keeps it and asks again.  Here is
 * as little as possible: no thread, no memory that outlives a call, and no
 * wait without an end.  A server that shuts down does not wait for a process
 * that hangs.
 *
 * What is sent and received is specified in
 * crates/walden-archive/src/serve/protocol.rs.
 *
 * Licensed as Walden is: under the Apache License 2.0 or the MIT licence, at
 * your choice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#if PG_VERSION_NUM < 150000
#error "archive modules need PostgreSQL 15 or later"
#endif

#if PG_VERSION_NUM >= 160000
#include "archive/archive_module.h"
#else
#include "postmaster/pgarch.h"
#endif
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "port.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/pidfile.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

#define PROTOCOL_VERSION	1
#define HEADER_BYTES		8	/* of a request */
#define FRAME_BYTES			3	/* of a reply's beginning */
#define MAX_FIELDS			8192

/* As in walden archive serve (--socket). */
#define DEFAULT_SOCKET		"/run/walden/archive.sock"

/* walden archive serve says at least each second that it lives. */
#define MAX_SILENCE_MS		10000
/* The same while the server shuts down, and once it was silent for so long. */
#define STOPPING_SILENCE_MS	2000
#define GIVEN_UP_SILENCE_MS	100
/* How often it is looked whether the server shuts down. */
#define LOOK_MS				500

PGDLLEXPORT void _PG_init(void);

static char *walden_repo = NULL;
static char *walden_config = NULL;
static char *walden_socket = NULL;
static int	walden_timeout = 300;

/* The last call ended without an answer while the server was shutting down. */
static bool has_given_up = false;

/* One file's connection. */
typedef struct Conversation
{
	const char *file;
	int			fd;				/* -1: none */
	int64		deadline;		/* milliseconds of the monotonic clock */
	int64		heard;			/* when something was received last */
	bool		has_latch_set;	/* a wakeup that is meant for the caller */
} Conversation;

static int64
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/*
 * Whether the server is shutting down.  The archiver's last cycle is begun by
 * a signal whose flag modules cannot see (ready_to_stop in pgarch.c), but the
 * postmaster writes its state to its lock file.
 */
static bool
is_server_stopping(void)
{
	char		content[1024];
	char	   *line = content;
	ssize_t		bytes;
	int			fd = open("postmaster.pid", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	bytes = read(fd, content, sizeof(content) - 1);
	close(fd);
	if (bytes <= 0)
		return false;
	content[bytes] = '\0';
	for (int number = 1; number < LOCK_FILE_LINE_PM_STATUS; number++)
	{
		line = strchr(line, '\n');
		if (line == NULL)
			return false;
		line++;
	}
	return strncmp(line, PM_STATUS_STOPPING, strlen("stopping")) == 0;
}

static uint32
wait_event(void)
{
#if PG_VERSION_NUM >= 170000
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("WaldenArchive");
	return event;
#else
	return PG_WAIT_EXTENSION;
#endif
}

static void
report_no_answer(Conversation *conversation, bool is_silent, int64 waited)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("could not archive file \"%s\"", conversation->file),
			 is_silent ?
			 errdetail("walden archive serve has accepted the request and has not shown any sign of life for %lld ms.",
					   (long long) waited) :
			 errdetail("walden archive serve is still working on the file after %d seconds (walden.timeout).",
					   walden_timeout),
			 is_silent ?
			 errhint("Is the process at \"%s\" stopped, or the machine overloaded? Restart it if it does not recover.",
					 walden_socket) :
			 errhint("Its own log says what it waits for. The server keeps the file and tries again.")));
}

/*
 * Waits until the socket can be read or written.  Not longer than the deadline
 * and the longest silence allow, and not once the archiver is to end.
 */
static void
wait_for_socket(Conversation *conversation, int event)
{
	for (;;)
	{
		int64		now = now_ms();
		int64		max_silence = MAX_SILENCE_MS;
		int64		left;
		int			found;

		if (is_server_stopping())
			max_silence = has_given_up ? GIVEN_UP_SILENCE_MS : STOPPING_SILENCE_MS;
		if (now - conversation->heard >= max_silence)
		{
			has_given_up = max_silence != MAX_SILENCE_MS;
			report_no_answer(conversation, true, now - conversation->heard);
		}
		if (now >= conversation->deadline)
			report_no_answer(conversation, false, 0);

		left = Min(conversation->deadline, conversation->heard + max_silence) - now;
		found = WaitLatchOrSocket(MyLatch,
								  WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH | event,
								  conversation->fd,
								  (long) Min(left, LOOK_MS),
								  wait_event());
		if (found & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			conversation->has_latch_set = true;
			/* Barriers, for which other processes wait. */
			CHECK_FOR_INTERRUPTS();
		}
		if (ShutdownRequestPending)
			ereport(ERROR,
					(errcode(ERRCODE_ADMIN_SHUTDOWN),
					 errmsg("could not archive file \"%s\"", conversation->file),
					 errdetail("The archiver is being stopped."),
					 errhint("The file is archived after the server's next start.")));
		if (found & event)
			return;
	}
}

static void
report_connection(Conversation *conversation, const char *what, int error)
{
	errno = error;
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("could not archive file \"%s\"", conversation->file),
			 errdetail("Could not %s walden archive serve at \"%s\": %m.", what, walden_socket),
			 error == ENOENT || error == ECONNREFUSED ?
			 errhint("Start walden archive serve, for example by \"systemctl start walden-archive@NAME\". The server keeps the file and tries again.") :
			 error == ECONNRESET || error == EPIPE ?
			 errhint("It was stopped or has crashed: see its log. The server keeps the file and tries again.") :
			 error == EAGAIN ?
			 errhint("It does not take connections: is it stopped, or overloaded? Restart it if it does not recover.") :
			 errhint("walden archive serve has to run as the user that this server runs as, and walden.socket to name its --socket.")));
}

static void
connect_to_serve(Conversation *conversation)
{
	struct sockaddr_un address;
	uid_t		uid;
	gid_t		gid;

	conversation->fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (conversation->fd < 0)
		report_connection(conversation, "create a socket for", errno);
	if (fcntl(conversation->fd, F_SETFD, FD_CLOEXEC) < 0 ||
		!pg_set_noblock(conversation->fd))
		report_connection(conversation, "set up a socket for", errno);

	memset(&address, 0, sizeof(address));
	address.sun_family = AF_UNIX;
	/* Its length was checked before: see find_problem(). */
	strlcpy(address.sun_path, walden_socket, sizeof(address.sun_path));
	while (connect(conversation->fd, (struct sockaddr *) &address, sizeof(address)) < 0)
	{
		if (errno == EISCONN)
			break;
		if (errno == EINTR)
			continue;
		/* EAGAIN: too many connections wait to be accepted; that cannot be waited for. */
		if (errno != EINPROGRESS && errno != EALREADY)
			report_connection(conversation, "connect to", errno);
		wait_for_socket(conversation, WL_SOCKET_WRITEABLE);
	}

	/* Nobody else may say that a file is archived. */
	if (getpeereid(conversation->fd, &uid, &gid) != 0)
		report_connection(conversation, "find out who runs", errno);
	if (uid != geteuid() && uid != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("could not archive file \"%s\"", conversation->file),
				 errdetail("The process at \"%s\" runs as user id %u; expected %u, as this server does, or root.",
						   walden_socket, (unsigned int) uid, (unsigned int) geteuid()),
				 errhint("Find out what listens there. The folder of walden.socket should be writable for nobody else.")));
}

static void
add_field(StringInfo request, const char *field)
{
	size_t		bytes = field == NULL ? 0 : strlen(field);

	/* Of DataDir, nothing else says so. */
	if (bytes > MAXPGPATH)
		ereport(ERROR,
				(errcode(ERRCODE_NAME_TOO_LONG),
				 errmsg("could not hand over \"%s\" to walden archive serve", field),
				 errdetail("Expected at most %d bytes, found %zu.", MAXPGPATH, bytes)));
	appendStringInfoChar(request, (char) (bytes >> 8));
	appendStringInfoChar(request, (char) (bytes & 0xFF));
	appendBinaryStringInfo(request, field == NULL ? "" : field, (int) bytes);
}

static void
send_request(Conversation *conversation)
{
	StringInfoData request;
	int			fields;
	int			sent = 0;

	initStringInfo(&request);
	appendBinaryStringInfo(&request, "WALD", 4);
	appendStringInfoChar(&request, PROTOCOL_VERSION);
	appendStringInfoChar(&request, '\0');
	appendStringInfoChar(&request, '\0');
	appendStringInfoChar(&request, '\0');
	add_field(&request, DataDir);
	add_field(&request, conversation->file);
	add_field(&request, walden_repo);
	add_field(&request, walden_config);
	/* Four fields of at most MAXPGPATH bytes. */
	fields = request.len - HEADER_BYTES;
	Assert(fields <= MAX_FIELDS);
	request.data[6] = (char) (fields >> 8);
	request.data[7] = (char) (fields & 0xFF);

	while (sent < request.len)
	{
		ssize_t		now = send(conversation->fd, request.data + sent, request.len - sent, MSG_NOSIGNAL);

		if (now > 0)
			sent += now;
		else if (now < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			wait_for_socket(conversation, WL_SOCKET_WRITEABLE);
		else if (now < 0 && errno != EINTR)
			report_connection(conversation, "send the request to", errno);
	}
}

static void
receive(Conversation *conversation, char *buffer, int bytes)
{
	int			received = 0;

	while (received < bytes)
	{
		ssize_t		now = recv(conversation->fd, buffer + received, bytes - received, 0);

		if (now > 0)
		{
			received += now;
			conversation->heard = now_ms();
		}
		else if (now == 0)
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("could not archive file \"%s\"", conversation->file),
					 errdetail("walden archive serve closed the connection before it answered."),
					 errhint("It was stopped or has crashed: see its log. The server keeps the file and tries again.")));
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			wait_for_socket(conversation, WL_SOCKET_READABLE);
		else if (errno != EINTR)
			report_connection(conversation, "read the answer of", errno);
	}
}

static void
report_protocol(Conversation *conversation)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("could not archive file \"%s\"", conversation->file),
			 errdetail("The answer from \"%s\" is none of walden archive serve.", walden_socket),
			 errhint("Install walden and walden_archive.so of the same release, then restart walden archive serve and the server.")));
}

/*
 * Takes the next text out of a reply's fields, with a zero byte behind it.
 */
static char *
take_text(Conversation *conversation, const unsigned char *fields, int bytes, int *at)
{
	int			length;
	char	   *text;

	if (bytes - *at < 2)
		report_protocol(conversation);
	length = fields[*at] << 8 | fields[*at + 1];
	*at += 2;
	if (bytes - *at < length)
		report_protocol(conversation);
	text = pnstrdup((const char *) fields + *at, length);
	*at += length;
	for (char *c = text; *c != '\0'; c++)
	{
		if ((unsigned char) *c < ' ' && *c != '\n')
			*c = ' ';
	}
	return text;
}

/*
 * Waits for what became of the file; an error unless it is archived.
 */
static void
receive_answer(Conversation *conversation)
{
	for (;;)
	{
		unsigned char frame[FRAME_BYTES];
		unsigned char *fields;
		int			bytes;
		int			at = 0;

		receive(conversation, (char *) frame, FRAME_BYTES);
		bytes = frame[1] << 8 | frame[2];
		if (bytes > MAX_FIELDS)
			report_protocol(conversation);
		fields = palloc(bytes + 1);
		receive(conversation, (char *) fields, bytes);

		if (frame[0] == 'W' && bytes == 0)
			pfree(fields);
		else if (frame[0] == 'D')
		{
			char	   *warnings = take_text(conversation, fields, bytes, &at);

			if (at != bytes)
				report_protocol(conversation);
			if (warnings[0] != '\0')
				ereport(WARNING,
						(errmsg("archived file \"%s\"", conversation->file),
						 errdetail_internal("%s", warnings)));
			return;
		}
		else if (frame[0] == 'F')
		{
			char	   *message = take_text(conversation, fields, bytes, &at);
			char	   *detail = take_text(conversation, fields, bytes, &at);
			char	   *hint = take_text(conversation, fields, bytes, &at);

			if (at != bytes)
				report_protocol(conversation);
			/* It has answered, so it does not hang. */
			has_given_up = false;
			ereport(ERROR,
					(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
					 errmsg_internal("%s", message),
					 detail[0] != '\0' ? errdetail_internal("%s", detail) : 0,
					 hint[0] != '\0' ? errhint("%s", hint) : 0));
		}
		else
			report_protocol(conversation);
	}
}

/*
 * Archives one file.  Errors are caught here and not left to the archiver:
 * before 17 they would end it, and in all versions the socket has to be closed.
 */
static bool
archive_file(const char *file)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;
	volatile bool is_archived = false;
	Conversation conversation = {.file = file,.fd = -1};
	Conversation *volatile here = &conversation;

	conversation.heard = now_ms();
	conversation.deadline = conversation.heard + (int64) walden_timeout * 1000;
	context = AllocSetContextCreate(caller, "walden_archive", ALLOCSET_DEFAULT_SIZES);
	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		connect_to_serve(here);
		send_request(here);
		receive_answer(here);
		has_given_up = false;
		is_archived = true;
	}
	PG_CATCH();
	{
		EmitErrorReport();
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	if (here->fd >= 0)
		close(here->fd);

	/*
	 * The archiver's own loop waits for the same latch: what has set it
	 * meanwhile, such as the last cycle's signal, would be noticed only after
	 * its longest sleep.
	 */
	if (here->has_latch_set)
		SetLatch(MyLatch);
	return is_archived;
}

/*
 * Settings are judged here and not by check hooks: of a value that a hook
 * rejects when the configuration is read again, nothing is seen in the log.
 */
static const char *
find_problem(void)
{
	/* The caller's memory context is one that is never reset. */
	static char problem[MAXPGPATH];
	struct sockaddr_un address;

	if (walden_socket == NULL || walden_socket[0] == '\0')
		return "\"walden.socket\" is not set.";
	if (walden_repo != NULL && strlen(walden_repo) > MAXPGPATH)
		return "\"walden.repo\" is too long.";
	if (walden_config != NULL && strlen(walden_config) > MAXPGPATH)
		return "\"walden.config\" is too long.";
	if (is_absolute_path(walden_socket) && strlen(walden_socket) < sizeof(address.sun_path))
		return NULL;
	snprintf(problem, sizeof(problem),
			 "\"walden.socket\" is \"%s\"; expected an absolute path of at most %d bytes.",
			 walden_socket, (int) sizeof(address.sun_path) - 1);
	return problem;
}

static bool
check_configured(void)
{
	const char *problem = find_problem();

	if (problem == NULL)
		return true;
#if PG_VERSION_NUM >= 170000
	arch_module_check_errdetail("%s", problem);
#else
	ereport(WARNING, (errmsg_internal("%s", problem)));
#endif
	return false;
}

void
_PG_init(void)
{
	DefineCustomStringVariable("walden.socket",
							   "Socket of walden archive serve.",
							   "An absolute path, as its --socket.",
							   &walden_socket, DEFAULT_SOCKET,
							   PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("walden.repo",
							   "Archive that walden archive serve is expected to have.",
							   "Files are refused if it has another one. Empty: not compared.",
							   &walden_repo, "",
							   PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("walden.config",
							   "Configuration that walden archive serve is expected to have.",
							   "Files are refused if it has another one. Empty: not compared.",
							   &walden_config, "",
							   PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("walden.timeout",
							"Time after which a file that is not archived is asked for again.",
							"A process that shows no sign of life is given up after 10 seconds.",
							&walden_timeout, 300, 1, 86400,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	MarkGUCPrefixReserved("walden");
}

#if PG_VERSION_NUM >= 160000

static bool
check_configured_cb(ArchiveModuleState *state)
{
	return check_configured();
}

static bool
archive_file_cb(ArchiveModuleState *state, const char *file, const char *path)
{
	return archive_file(file);
}

static const ArchiveModuleCallbacks callbacks = {
	.check_configured_cb = check_configured_cb,
	.archive_file_cb = archive_file_cb,
};

const ArchiveModuleCallbacks *
_PG_archive_module_init(void)
{
	return &callbacks;
}

#else

PGDLLEXPORT void _PG_archive_module_init(ArchiveModuleCallbacks *cb);

static bool
archive_file_cb(const char *file, const char *path)
{
	return archive_file(file);
}

void
_PG_archive_module_init(ArchiveModuleCallbacks *cb)
{
	cb->check_configured_cb = check_configured;
	cb->archive_file_cb = archive_file_cb;
}

#endif
