//! The functions of the server's module API that this module calls.
//!
//! The server returns them by name when the module loads; a function that it does not know stays null. They
//! are looked up once: if a required one is missing, the load fails; if an optional one is missing, the
//! module does without it.

use core::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use redis_module::raw::{
    self, RedisModuleBlockedClient, RedisModuleCallReply, RedisModuleCmdFunc, RedisModuleCommand,
    RedisModuleCommandInfo, RedisModuleConfigApplyFunc, RedisModuleConfigGetBoolFunc,
    RedisModuleConfigGetNumericFunc, RedisModuleConfigSetBoolFunc, RedisModuleConfigSetNumericFunc,
    RedisModuleCtx, RedisModuleDisconnectFunc, RedisModuleEvent, RedisModuleEventCallback,
    RedisModuleInfoCtx, RedisModuleInfoFunc, RedisModuleKey, RedisModuleNotificationFunc,
    RedisModuleServerInfoData, RedisModuleString, RedisModuleTimerID, RedisModuleTimerProc, RedisModuleUser,
    mstime_t,
};

/// The name of the module in `MODULE LIST`, the same as for `brandur/redis-cell`.
pub const NAME: &CStr = c"redis-cell";

/// Declares the struct of function pointers and its lookup from one list.
macro_rules! api {
    (
        required { $($field:ident = $symbol:ident: $type:ty,)* }
        optional { $($maybe:ident = $maybe_symbol:ident: $maybe_type:ty,)* }
        named { $($named:ident = $name:literal: $named_type:ty,)* }
    ) => {
        /// Pointers to the server's functions, checked to be there.
        pub struct Api {
            $(pub $field: $type,)*
            $(pub $maybe: Option<$maybe_type>,)*
            $(pub $named: Option<$named_type>,)*
        }

        impl Api {
            /// Copies the pointers that the server has just set.
            ///
            /// The error is the name of a required function that the server lacks.
            fn resolve() -> Result<Self, &'static str> {
                // SAFETY: these statics are written by RedisModule_Init alone, which has returned, on this
                // very thread; they are copied, no reference to them is made.
                let mut api = unsafe {
                    Self {
                        $($field: raw::$symbol.ok_or(stringify!($symbol))?,)*
                        $($maybe: raw::$maybe_symbol,)*
                        $($named: None,)*
                    }
                };
                // SAFETY: the function takes a name and a place for a pointer to the function of this name,
                // which stays null when there is none.
                $(unsafe { (api.get_api)($name.as_ptr(), (&raw mut api.$named).cast()) };)*
                Ok(api)
            }
        }
    };
}

type Ctx = *mut RedisModuleCtx;
type KeyPtr = *mut RedisModuleKey;
type Str = *mut RedisModuleString;
type InfoCtx = *mut RedisModuleInfoCtx;
type BlockedPtr = *mut RedisModuleBlockedClient;
type FreePrivateData = Option<unsafe extern "C" fn(Ctx, *mut c_void)>;
type Text = *const c_char;

api! {
    required {
        get_api = RedisModule_GetApi: unsafe extern "C" fn(Text, *mut c_void) -> c_int,
        create_command = RedisModule_CreateCommand:
            unsafe extern "C" fn(Ctx, Text, RedisModuleCmdFunc, Text, c_int, c_int, c_int) -> c_int,
        is_keys_position_request = RedisModule_IsKeysPositionRequest: unsafe extern "C" fn(Ctx) -> c_int,
        key_at_pos = RedisModule_KeyAtPos: unsafe extern "C" fn(Ctx, c_int),
        set_module_options = RedisModule_SetModuleOptions: unsafe extern "C" fn(Ctx, c_int),
        log = RedisModule_Log: unsafe extern "C" fn(Ctx, Text, Text, ...),

        string_ptr_len = RedisModule_StringPtrLen:
            unsafe extern "C" fn(*const RedisModuleString, *mut usize) -> Text,
        wrong_arity = RedisModule_WrongArity: unsafe extern "C" fn(Ctx) -> c_int,
        reply_with_array = RedisModule_ReplyWithArray: unsafe extern "C" fn(Ctx, c_long) -> c_int,
        reply_with_long_long = RedisModule_ReplyWithLongLong:
            unsafe extern "C" fn(Ctx, c_longlong) -> c_int,
        reply_with_null_array = RedisModule_ReplyWithNullArray: unsafe extern "C" fn(Ctx) -> c_int,
        reply_with_simple_string = RedisModule_ReplyWithSimpleString:
            unsafe extern "C" fn(Ctx, Text) -> c_int,
        reply_with_string_buffer = RedisModule_ReplyWithStringBuffer:
            unsafe extern "C" fn(Ctx, Text, usize) -> c_int,
        reply_with_error = RedisModule_ReplyWithError: unsafe extern "C" fn(Ctx, Text) -> c_int,

        open_key = RedisModule_OpenKey: unsafe extern "C" fn(Ctx, Str, c_int) -> KeyPtr,
        close_key = RedisModule_CloseKey: unsafe extern "C" fn(KeyPtr),
        key_type = RedisModule_KeyType: unsafe extern "C" fn(KeyPtr) -> c_int,
        delete_key = RedisModule_DeleteKey: unsafe extern "C" fn(KeyPtr) -> c_int,
        unlink_key = RedisModule_UnlinkKey: unsafe extern "C" fn(KeyPtr) -> c_int,
        get_expire = RedisModule_GetExpire: unsafe extern "C" fn(KeyPtr) -> mstime_t,
        set_expire = RedisModule_SetExpire: unsafe extern "C" fn(KeyPtr, mstime_t) -> c_int,
        string_dma = RedisModule_StringDMA:
            unsafe extern "C" fn(KeyPtr, *mut usize, c_int) -> *mut c_char,
        value_length = RedisModule_ValueLength: unsafe extern "C" fn(KeyPtr) -> usize,
        zset_score = RedisModule_ZsetScore: unsafe extern "C" fn(KeyPtr, Str, *mut f64) -> c_int,
        zset_add = RedisModule_ZsetAdd: unsafe extern "C" fn(KeyPtr, f64, Str, *mut c_int) -> c_int,
        zset_rem = RedisModule_ZsetRem: unsafe extern "C" fn(KeyPtr, Str, *mut c_int) -> c_int,
        zset_first = RedisModule_ZsetFirstInScoreRange:
            unsafe extern "C" fn(KeyPtr, f64, f64, c_int, c_int) -> c_int,
        zset_last = RedisModule_ZsetLastInScoreRange:
            unsafe extern "C" fn(KeyPtr, f64, f64, c_int, c_int) -> c_int,
        zset_next = RedisModule_ZsetRangeNext: unsafe extern "C" fn(KeyPtr) -> c_int,
        zset_previous = RedisModule_ZsetRangePrev: unsafe extern "C" fn(KeyPtr) -> c_int,
        zset_current = RedisModule_ZsetRangeCurrentElement: unsafe extern "C" fn(KeyPtr, *mut f64) -> Str,
        zset_stop = RedisModule_ZsetRangeStop: unsafe extern "C" fn(KeyPtr),
        string_truncate = RedisModule_StringTruncate: unsafe extern "C" fn(KeyPtr, usize) -> c_int,
        hash_get = RedisModule_HashGet: unsafe extern "C" fn(KeyPtr, c_int, ...) -> c_int,
        hash_set = RedisModule_HashSet: unsafe extern "C" fn(KeyPtr, c_int, ...) -> c_int,

        signal_modified_key = RedisModule_SignalModifiedKey: unsafe extern "C" fn(Ctx, Str) -> c_int,
        notify_keyspace_event = RedisModule_NotifyKeyspaceEvent:
            unsafe extern "C" fn(Ctx, c_int, Text, Str) -> c_int,
        replicate_verbatim = RedisModule_ReplicateVerbatim: unsafe extern "C" fn(Ctx) -> c_int,
        get_server_info = RedisModule_GetServerInfo:
            unsafe extern "C" fn(Ctx, Text) -> *mut RedisModuleServerInfoData,
        free_server_info = RedisModule_FreeServerInfo:
            unsafe extern "C" fn(Ctx, *mut RedisModuleServerInfoData),
        server_info_get_field_signed = RedisModule_ServerInfoGetFieldSigned:
            unsafe extern "C" fn(*mut RedisModuleServerInfoData, Text, *mut c_int) -> c_longlong,
        server_info_get_field = RedisModule_ServerInfoGetFieldC:
            unsafe extern "C" fn(*mut RedisModuleServerInfoData, Text) -> Text,
        replicate = RedisModule_Replicate: unsafe extern "C" fn(Ctx, Text, Text, ...) -> c_int,

        get_context_flags = RedisModule_GetContextFlags: unsafe extern "C" fn(Ctx) -> c_int,
        get_selected_db = RedisModule_GetSelectedDb: unsafe extern "C" fn(Ctx) -> c_int,
        select_db = RedisModule_SelectDb: unsafe extern "C" fn(Ctx, c_int) -> c_int,
        create_string = RedisModule_CreateString: unsafe extern "C" fn(Ctx, Text, usize) -> Str,
        free_string = RedisModule_FreeString: unsafe extern "C" fn(Ctx, Str),
        block_client = RedisModule_BlockClient: unsafe extern "C" fn(
            Ctx, RedisModuleCmdFunc, RedisModuleCmdFunc, FreePrivateData, c_longlong,
        ) -> BlockedPtr,
        unblock_client = RedisModule_UnblockClient: unsafe extern "C" fn(BlockedPtr, *mut c_void) -> c_int,
        set_disconnect_callback = RedisModule_SetDisconnectCallback:
            unsafe extern "C" fn(BlockedPtr, RedisModuleDisconnectFunc),
        get_blocked_client_handle = RedisModule_GetBlockedClientHandle:
            unsafe extern "C" fn(Ctx) -> BlockedPtr,
        get_blocked_client_private_data = RedisModule_GetBlockedClientPrivateData:
            unsafe extern "C" fn(Ctx) -> *mut c_void,
        create_timer = RedisModule_CreateTimer: unsafe extern "C" fn(
            Ctx, mstime_t, RedisModuleTimerProc, *mut c_void,
        ) -> RedisModuleTimerID,
        stop_timer = RedisModule_StopTimer:
            unsafe extern "C" fn(Ctx, RedisModuleTimerID, *mut *mut c_void) -> c_int,
        subscribe_to_keyspace_events = RedisModule_SubscribeToKeyspaceEvents:
            unsafe extern "C" fn(Ctx, c_int, RedisModuleNotificationFunc) -> c_int,
        subscribe_to_server_event = RedisModule_SubscribeToServerEvent:
            unsafe extern "C" fn(Ctx, RedisModuleEvent, RedisModuleEventCallback) -> c_int,

        register_info_func = RedisModule_RegisterInfoFunc:
            unsafe extern "C" fn(Ctx, RedisModuleInfoFunc) -> c_int,
        info_add_section = RedisModule_InfoAddSection: unsafe extern "C" fn(InfoCtx, Text) -> c_int,
        info_add_text = RedisModule_InfoAddFieldCString:
            unsafe extern "C" fn(InfoCtx, Text, Text) -> c_int,
        info_add_number = RedisModule_InfoAddFieldULongLong:
            unsafe extern "C" fn(InfoCtx, Text, c_ulonglong) -> c_int,

        get_client_id = RedisModule_GetClientId: unsafe extern "C" fn(Ctx) -> c_ulonglong,
        call = RedisModule_Call:
            unsafe extern "C" fn(Ctx, Text, Text, ...) -> *mut RedisModuleCallReply,
        free_call_reply = RedisModule_FreeCallReply: unsafe extern "C" fn(*mut RedisModuleCallReply),
        call_reply_type = RedisModule_CallReplyType: unsafe extern "C" fn(*mut RedisModuleCallReply) -> c_int,
        call_reply_length = RedisModule_CallReplyLength: unsafe extern "C" fn(*mut RedisModuleCallReply) -> usize,
        call_reply_integer = RedisModule_CallReplyInteger:
            unsafe extern "C" fn(*mut RedisModuleCallReply) -> c_longlong,
        call_reply_array_element = RedisModule_CallReplyArrayElement:
            unsafe extern "C" fn(*mut RedisModuleCallReply, usize) -> *mut RedisModuleCallReply,
        call_reply_string = RedisModule_CallReplyStringPtr:
            unsafe extern "C" fn(*mut RedisModuleCallReply, *mut usize) -> Text,
    }
    optional {
        // Redis 7.0: the metadata that COMMAND INFO and COMMAND DOCS return.
        get_command = RedisModule_GetCommand:
            unsafe extern "C" fn(Ctx, Text) -> *mut RedisModuleCommand,
        set_command_info = RedisModule_SetCommandInfo:
            unsafe extern "C" fn(*mut RedisModuleCommand, *const RedisModuleCommandInfo) -> c_int,
        is_sub_event_supported = RedisModule_IsSubEventSupported:
            unsafe extern "C" fn(RedisModuleEvent, u64) -> c_int,
        // Redis 7.0. Without it, all keys of a call count as read and written.
        key_at_pos_with_flags = RedisModule_KeyAtPosWithFlags: unsafe extern "C" fn(Ctx, c_int, c_int),
        // Redis 7.0. Without them, settings are only arguments of `loadmodule`.
        register_numeric_config = RedisModule_RegisterNumericConfig: unsafe extern "C" fn(
            Ctx, Text, c_longlong, c_uint, c_longlong, c_longlong, RedisModuleConfigGetNumericFunc,
            RedisModuleConfigSetNumericFunc, RedisModuleConfigApplyFunc, *mut c_void,
        ) -> c_int,
        register_bool_config = RedisModule_RegisterBoolConfig: unsafe extern "C" fn(
            Ctx, Text, c_int, c_uint, RedisModuleConfigGetBoolFunc, RedisModuleConfigSetBoolFunc,
            RedisModuleConfigApplyFunc, *mut c_void,
        ) -> c_int,
        load_configs = RedisModule_LoadConfigs: unsafe extern "C" fn(Ctx) -> c_int,
        // Redis 6.2: whether there are module keyspace events.
        keyspace_classes = RedisModule_GetKeyspaceNotificationFlagsAll: unsafe extern "C" fn() -> c_int,
        // Redis 7.2. Without it, commands are in no ACL category.
        set_command_acl_categories = RedisModule_SetCommandACLCategories:
            unsafe extern "C" fn(*mut RedisModuleCommand, Text) -> c_int,
        // Redis 7.4, Valkey 8.0. Without it, commands must be allowed to users one by one.
        add_acl_category = RedisModule_AddACLCategory: unsafe extern "C" fn(Ctx, Text) -> c_int,
        // Redis 7.0 (the name of a client's user: 6.2). Without them, permissions are checked when a client
        // joins a queue.
        client_user_name = RedisModule_GetClientUserNameById: unsafe extern "C" fn(Ctx, u64) -> Str,
        module_user = RedisModule_GetModuleUserFromUserName:
            unsafe extern "C" fn(Str) -> *mut RedisModuleUser,
        free_module_user = RedisModule_FreeModuleUser: unsafe extern "C" fn(*mut RedisModuleUser),
        check_permissions = RedisModule_ACLCheckCommandPermissions:
            unsafe extern "C" fn(*mut RedisModuleUser, *mut Str, c_int) -> c_int,
        // Redis 8.2. Without it, the callback stays subscribed, and returns at once while no client waits.
        unsubscribe_from_keyspace_events = RedisModule_UnsubscribeFromKeyspaceEvents:
            unsafe extern "C" fn(Ctx, c_int, RedisModuleNotificationFunc) -> c_int,
        // Early releases of 6.0 do not report whether the server is paused.
        avoid_replica_traffic = RedisModule_AvoidReplicaTraffic: unsafe extern "C" fn() -> c_int,
        // Redis 6.2.8 and 7.0.5. Without them, expiries are read and set as time to live.
        get_abs_expire = RedisModule_GetAbsExpire: unsafe extern "C" fn(KeyPtr) -> mstime_t,
        set_abs_expire = RedisModule_SetAbsExpire: unsafe extern "C" fn(KeyPtr, mstime_t) -> c_int,
    }
    // Functions of Valkey only, which the bindings do not know.
    named {
        // Valkey 9.1, whose users may be restricted to databases. The last argument, which may be null, is a
        // place for the reason.
        check_permissions_in = c"ValkeyModule_ACLCheckPermissions":
            unsafe extern "C" fn(*mut RedisModuleUser, *mut Str, c_int, c_int, *mut c_int) -> c_int,
        // Valkey 9.0: the options that the server knows.
        known_options = c"ValkeyModule_GetModuleOptionsAll": unsafe extern "C" fn() -> c_int,
    }
}

static API: OnceLock<Api> = OnceLock::new();

/// Looks the functions up, after the server has set the pointers.
///
/// The error is the name of a required function that the server lacks.
pub fn resolve() -> Result<&'static Api, &'static str> {
    if API.get().is_none() {
        // A second load of the same file finds the same server and the same pointers.
        let _ = API.set(Api::resolve()?);
    }
    get().ok_or("RedisModule_GetApi")
}

/// The functions, or `None` before the module has been loaded.
pub fn get() -> Option<&'static Api> {
    API.get()
}
